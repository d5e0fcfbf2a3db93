// 16-bit products by cuBLASLt. The bits of a row must not depend on the number of rows, but cuBLAS
// selects an algorithm by that number. So two algorithms are selected for each shape of matrix, at
// fixed numbers of rows and without splitting k: one for few rows and one for many. cuBLAS promises
// no bits for that: algorithms are taken only if they give the same bits for several numbers of rows
// on this device. Without an algorithm for few rows the kernels of matmul.cu compute the product.
#include <cublasLt.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/dense_check.h"

namespace polysketch::cuda {
namespace {

constexpr int64_t kFewRows = 256, kManyRows = 8192;  // at which algorithms are selected
constexpr int64_t kFromMany = 1024;                  // more rows are many
constexpr size_t kScratchBytes = size_t{32} << 20;

// The description of one product. A row-major matrix is the transpose of a column-major one, so
// cuBLAS computes out^T = w^T x^T.
class Problem {
 public:
  Problem(const CudaMatrix& w, int64_t rows, const float* bias) {
    const cudaDataType_t half = w.type() == DataType::kBf16 ? CUDA_R_16BF : CUDA_R_16F;
    ok_ = cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
              CUBLAS_STATUS_SUCCESS &&
          cublasLtMatrixLayoutCreate(&weights, half, w.out(), w.in(), w.padded_out()) ==
              CUBLAS_STATUS_SUCCESS &&
          cublasLtMatrixLayoutCreate(&inputs, half, w.in(), rows, w.padded_in()) ==
              CUBLAS_STATUS_SUCCESS &&
          cublasLtMatrixLayoutCreate(&outputs, CUDA_R_32F, w.out(), rows, w.out()) ==
              CUBLAS_STATUS_SUCCESS;
    if (ok_ && bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      ok_ = Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) &&
            Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
  }
  ~Problem() {
    if (outputs != nullptr) cublasLtMatrixLayoutDestroy(outputs);
    if (inputs != nullptr) cublasLtMatrixLayoutDestroy(inputs);
    if (weights != nullptr) cublasLtMatrixLayoutDestroy(weights);
    if (product != nullptr) cublasLtMatmulDescDestroy(product);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
  bool ok() const { return ok_; }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, inputs = nullptr, outputs = nullptr;

 private:
  template <typename T>
  bool Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)) ==
           CUBLAS_STATUS_SUCCESS;
  }
  bool ok_ = false;
};

struct Choice {
  bool found = false;
  cublasLtMatmulAlgo_t few{}, many{};
  const cublasLtMatmulAlgo_t& For(int64_t rows) const { return rows > kFromMany ? many : few; }
};

// Algorithms that cuBLAS proposes, the fastest first.
struct Proposals {
  int count = 0;
  cublasLtMatmulHeuristicResult_t results[8];
};

class CublasLt final : public DenseLibrary {
 public:
  CublasLt(Device* device, cublasLtHandle_t handle)
      : device_(device), handle_(handle), scratch_(device, kScratchBytes) {}
  ~CublasLt() override { cublasLtDestroy(handle_); }

  bool Product(const uint16_t* x, int64_t rows, const CudaMatrix& w, const float* bias,
               bool accumulate, float* out) override {
    if (!device_->status().ok()) return true;
    const Choice choice = ChoiceFor(w, bias);
    if (!choice.found) return false;
    if (!device_->BeforeLaunch()) return true;
    Multiply(x, rows, w, bias, accumulate, choice.For(rows), out);
    return true;
  }

 private:
  void Multiply(const uint16_t* x, int64_t rows, const CudaMatrix& w, const float* bias,
                bool accumulate, const cublasLtMatmulAlgo_t& algorithm, float* out) {
    const Problem problem(w, rows, bias);
    const float one = 1, beta = accumulate ? 1 : 0;
    const cublasStatus_t status =
        problem.ok()
            ? cublasLtMatmul(handle_, problem.product, &one, w.halves(), problem.weights, x,
                             problem.inputs, &beta, out, problem.outputs, out, problem.outputs,
                             &algorithm, scratch_.data(), scratch_.size(), device_->stream())
            : CUBLAS_STATUS_NOT_INITIALIZED;
    if (status != CUBLAS_STATUS_SUCCESS) {
      device_->Check(cudaErrorUnknown, cublasLtGetStatusString(status));
    }
  }

  Choice ChoiceFor(const CudaMatrix& w, const float* bias) {
    const auto key = std::tuple(w.in(), w.out(), w.type(), bias != nullptr);
    const auto found = choices_.find(key);
    if (found != choices_.end()) return found->second;
    // A selection waits for the device: in a recording, the step runs again without one.
    if (device_->SpoilRecording()) return Choice();
    return choices_[key] = Select(w, bias);
  }

  Choice Select(const CudaMatrix& w, const float* bias) {
    Choice choice;
    const Proposals few = Proposed(w, kFewRows, bias), many = Proposed(w, kManyRows, bias);
    for (int i = 0; i < few.count && !choice.found; ++i) {
      choice.few = choice.many = few.results[i].algo;
      choice.found = few.results[i].state == CUBLAS_STATUS_SUCCESS && Gives(w, bias, choice, 0);
    }
    for (int i = 0; i < many.count && choice.found; ++i) {
      const Choice both{true, choice.few, many.results[i].algo};
      if (many.results[i].state == CUBLAS_STATUS_SUCCESS && Gives(w, bias, both, kManyRows)) {
        return both;
      }
    }
    return choice;
  }

  Proposals Proposed(const CudaMatrix& w, int64_t rows, const float* bias) {
    Proposals proposals;
    const Problem problem(w, rows, bias);
    cublasLtMatmulPreference_t preference = nullptr;
    if (!problem.ok() || cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
      return proposals;
    }
    // A split of k would depend on the number of rows, and change the order of the sum.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    const size_t scratch = kScratchBytes;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                         &reductions, sizeof(reductions));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &scratch, sizeof(scratch));
    cublasLtMatmulAlgoGetHeuristic(handle_, problem.product, problem.weights, problem.inputs,
                                   problem.outputs, problem.outputs, preference, 8,
                                   proposals.results, &proposals.count);
    cublasLtMatmulPreferenceDestroy(preference);
    return proposals;
  }

  // Whether the algorithms support any number of rows and give the same bits for all, compared up to
  // `at_least` rows or more.
  bool Gives(const CudaMatrix& w, const float* bias, const Choice& choice, int64_t at_least) {
    for (const int64_t rows : kCheckedRows) {
      if (!Supports(w, rows, bias, choice.For(rows))) return false;
    }
    const auto multiply = [&](const uint16_t* x, int64_t rows, float* out) {
      Multiply(x, rows, w, bias, false, choice.For(rows), out);
    };
    return SameBitsForAnyRows(device_, w, at_least, multiply);
  }

  bool Supports(const CudaMatrix& w, int64_t rows, const float* bias,
                const cublasLtMatmulAlgo_t& algorithm) {
    const Problem problem(w, rows, bias);
    cublasLtMatmulHeuristicResult_t result;
    return problem.ok() &&
           cublasLtMatmulAlgoCheck(handle_, problem.product, problem.weights, problem.inputs,
                                   problem.outputs, problem.outputs, &algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kScratchBytes;
  }

  Device* const device_;
  const cublasLtHandle_t handle_;
  DeviceArray<uint8_t> scratch_;
  // Key: in, out, format, whether there is a bias.
  std::map<std::tuple<int64_t, int64_t, DataType, bool>, Choice> choices_;
};

}  // namespace

std::unique_ptr<DenseLibrary> NewDenseLibrary(Device* device) {
  const char* wish = std::getenv("POLYSKETCH_CUDA_DENSE");
  if (wish != nullptr && std::strcmp(wish, "portable") == 0) return nullptr;
  cublasLtHandle_t handle = nullptr;
  if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return nullptr;
  return std::make_unique<CublasLt>(device, handle);
}

}  // namespace polysketch::cuda
