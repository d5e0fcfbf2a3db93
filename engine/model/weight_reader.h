// Reads the tensors of a checkpoint one after the other, packs them for a backend and releases
// their pages. Which tensors a model has, and how they are named, is its format's (model_format.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/weights.h"

namespace polysketch {

// What a matrix may be packed as, if --weights names a format.
enum class MatrixRole {
  kDense,  // any; kQ4 where it is large enough to gain, else kQ8
  kFine,   // kQ8 for kQ4, which costs most accuracy here: embeddings
  // kFine, but kBf16 for both on a device, which computes a whole network of 16 bits in one kernel
  // (kernels/cuda/learned_sketch_fused.cu).
  kSketch,
  // Float32: small, and rounding would change an estimator, or what remains of a token after
  // thousands of others.
  kExact,
};

// How a checkpoint stores a matrix of a product: [inputs, outputs] or [outputs, inputs].
enum class MatrixLayout { kInOut, kOutIn };

class WeightReader {
 public:
  // `type`: the format of the dense matrices; as stored when unset. `vocabulary`: rows of a
  // vocabulary that the model has; those after them are not packed; 0: all. `rotate_residual`: a
  // format that can rotates the residual stream (residual_rotation.h).
  WeightReader(Checkpoint* checkpoint, Backend* backend, std::optional<DataType> type,
               int64_t vocabulary, bool rotate_residual, ModelWeights* weights)
      : checkpoint_(checkpoint),
        backend_(backend),
        type_(type),
        vocabulary_(vocabulary),
        rotate_residual_(rotate_residual),
        weights_(weights) {}

  bool rotate_residual() const { return rotate_residual_; }
  // Null: there is none.
  ThreadPool* pool() const { return backend_->pool(); }

  // Changes the elements of a matrix or vector as they are stored, before they are packed; empty:
  // none. Such a matrix is in temporary memory, in float32.
  using Edit = std::function<void(std::span<float> values)>;

  // All return INVALID_ARGUMENT, with its name, for a tensor that is missing or has another shape.

  Result<const Matrix*> ReadMatrix(const std::string& name, int64_t in, int64_t out,
                                   MatrixLayout layout, MatrixRole role);
  // A matrix [rows, width] of a vocabulary, as one of [width, vocabulary].
  Result<const Matrix*> ReadVocabulary(const std::string& name, int64_t rows, int64_t width,
                                       const Edit& edit = {});
  // `count` matrices of one tensor [count, in, out].
  Result<std::vector<const Matrix*>> ReadMatrices(const std::string& name, int64_t count,
                                                  int64_t in, int64_t out);

  // Rows of a matrix of kOutIn that form one matrix with those of others.
  struct Rows {
    std::string name;
    int64_t count = 0;
    // Of a head whose halves are the pairs that RoPE rotates (Hugging Face's rotate_half): element
    // i becomes 2 i, element i + d / 2 becomes 2 i + 1. 0: rows stay in order.
    int64_t paired_head = 0;
  };
  // One matrix [in, all rows] of the tensors. RESOURCE_EXHAUSTED if there is no memory to join
  // them.
  Result<const Matrix*> ReadJoined(std::span<const Rows> parts, int64_t in, const Edit& edit = {},
                                   MatrixRole role = MatrixRole::kDense);
  Result<const float*> ReadJoinedVector(std::span<const Rows> parts, const Edit& edit = {});

  Result<const float*> ReadVector(const std::string& name, int64_t size, const Edit& edit = {}) {
    const Rows all[] = {{name, size}};
    return ReadJoinedVector(all, edit);
  }
  // A sketch network of heads of d (docs/model-format.md); `inputs` edits the rows of d elements.
  // Tensors: `prefix`branch{1,2}.level{0,1}.{norm.scale,norm.bias,up.weight,down.weight}.
  Result<SketchNetwork> ReadSketchNetwork(const std::string& prefix, int d, int r,
                                          MatrixLayout layout, const Edit& inputs = {});

  // A tensor as it is stored.
  Result<std::vector<float>> ReadFloats(const std::string& name, std::span<const int64_t> shape);
  // Keeps values in the backend's memory.
  const float* KeepVector(const std::vector<float>& values);
  // Packs a matrix [in, out] that is computed, not read, as float32.
  const Matrix* KeepMatrix(const std::vector<float>& values, int64_t in, int64_t out);
  // RESOURCE_EXHAUSTED, with the name of a tensor, if there is no memory of that size.
  static Status CheckTemporaryMemory(const std::string& name, size_t bytes);

  // INVALID_ARGUMENT if the checkpoint has a tensor `name` whose bytes are not those of `of`.
  Status CheckCopy(const std::string& name, const std::string& of, std::span<const int64_t> shape);

  // INVALID_ARGUMENT for a tensor that was not read, unless `ignored` holds for its name. `what`:
  // of which model.
  Status CheckAllRead(std::string_view what,
                      const std::function<bool(std::string_view)>& ignored = {}) const;

 private:
  DataType TypeFor(MatrixRole role, int64_t elements, DataType stored) const;
  Result<const Matrix*> Pack(const std::string& name, const HostMatrix& source, bool transpose,
                             MatrixRole role);
  // `kept_rows` of the rows that are stored.
  Result<const Matrix*> Read(const std::string& name, int64_t rows, int64_t cols, int64_t kept_rows,
                             bool transpose, MatrixRole role);
  const Matrix* Keep(std::unique_ptr<const Matrix> matrix);
  // Keeps a matrix of the checkpoint, whose elements are parameters.
  const Matrix* KeepRead(std::unique_ptr<const Matrix> matrix);

  Checkpoint* const checkpoint_;
  Backend* const backend_;
  const std::optional<DataType> type_;
  const int64_t vocabulary_;
  const bool rotate_residual_;
  ModelWeights* const weights_;
};

}  // namespace polysketch
