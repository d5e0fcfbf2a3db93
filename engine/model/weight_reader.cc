#include "engine/model/weight_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/memory_limit.h"
#include "engine/checkpoint/model_config.h"
#include "kernels/quantize.h"

namespace polysketch {
namespace {

DataType ToDataType(TensorType type) {
  switch (type) {
    case TensorType::kF16:
      return DataType::kF16;
    case TensorType::kBF16:
      return DataType::kBf16;
    case TensorType::kI8:
      return DataType::kQ8;
    case TensorType::kU8:
      return DataType::kQ4;
    default:
      return DataType::kF32;  // Checkpoint::Get lets no other type through
  }
}

// Minimum number of elements of a matrix in q4. A smaller matrix is read from the first-level cache
// even with 8 bits an element, so that 4 bits would save no reads from memory.
constexpr int64_t kMinQ4 = 32 * 1024;

// The row of a tensor that becomes row `row` of a joined one.
int64_t StoredRow(const WeightReader::Rows& part, int64_t row) {
  if (part.paired_head == 0) return row;
  const int64_t in_head = row % part.paired_head;
  return row - in_head + in_head / 2 + (in_head % 2) * (part.paired_head / 2);
}

}  // namespace

DataType WeightReader::TypeFor(MatrixRole role, int64_t elements, DataType stored) const {
  if (role == MatrixRole::kExact) return DataType::kF32;
  if (role == MatrixRole::kSketch && IsQuantized(type_.value_or(stored)) &&
      !backend_->host_memory()) {
    return DataType::kBf16;
  }
  if (!type_) return stored;
  const bool fine = role != MatrixRole::kDense || elements < kMinQ4;
  return fine && *type_ == DataType::kQ4 ? DataType::kQ8 : *type_;
}

Result<const Matrix*> WeightReader::Pack(const std::string& name, const HostMatrix& source,
                                         bool transpose, MatrixRole role) {
  const DataType packed = TypeFor(role, source.rows * source.cols, source.type);
  const int64_t in = transpose ? source.cols : source.rows;
  if (IsQuantized(packed) && in > kQuantLongest) {
    return InvalidArgument("tensor ", name, ": expected at most ", kQuantLongest,
                           " inputs for 8-bit products, found ", in);
  }
  return KeepRead(backend_->PackMatrix(source, transpose, packed));
}

const Matrix* WeightReader::Keep(std::unique_ptr<const Matrix> matrix) {
  weights_->bytes += matrix->bytes();
  weights_->matrices.push_back(std::move(matrix));
  return weights_->matrices.back().get();
}

const Matrix* WeightReader::KeepRead(std::unique_ptr<const Matrix> matrix) {
  weights_->parameters += matrix->in() * matrix->out();
  return Keep(std::move(matrix));
}

const Matrix* WeightReader::KeepMatrix(const std::vector<float>& values, int64_t in, int64_t out) {
  const HostMatrix source{values.data(), DataType::kF32, in, out};
  return Keep(backend_->PackMatrix(source, /*transpose=*/false, DataType::kF32));
}

Status WeightReader::CheckTemporaryMemory(const std::string& name, size_t bytes) {
  if (MemoryFits(bytes)) return Status();
  return ResourceExhausted("tensor ", name, ": expected ", bytes,
                           " bytes of memory to convert or join it, found less");
}

Result<const Matrix*> WeightReader::Read(const std::string& name, int64_t rows, int64_t cols,
                                         int64_t kept_rows, bool transpose, MatrixRole role) {
  const TensorType stored = checkpoint_->TypeOf(name).value_or(TensorType::kF32);
  HostMatrix source{nullptr, ToDataType(stored), kept_rows, cols};
  std::optional<TensorView> scales;
  TensorView values;
  if (stored == TensorType::kI8) {
    source.scale_rows = transpose;  // the scales belong to the columns of the product
    PS_ASSIGN_OR_RETURN(values, checkpoint_->Get(name, {rows, cols}, stored));
    PS_ASSIGN_OR_RETURN(
        scales, checkpoint_->Get(name + ".scale", {transpose ? rows : cols}, TensorType::kF32));
  } else if (stored == TensorType::kU8 && !transpose) {
    const int64_t groups = Q4Groups(rows);
    PS_ASSIGN_OR_RETURN(values, checkpoint_->Get(name, {groups * kQ4Group / 2, cols}, stored));
    PS_ASSIGN_OR_RETURN(scales,
                        checkpoint_->Get(name + ".scale", {groups, cols}, TensorType::kBF16));
  } else {
    PS_ASSIGN_OR_RETURN(values, checkpoint_->Get(name, {rows, cols}));
  }
  source.data = values.data;
  if (scales) source.scales = scales->data;
  PS_ASSIGN_OR_RETURN(const Matrix* matrix, Pack(name, source, transpose, role));
  checkpoint_->Release(values);
  if (scales) checkpoint_->Release(*scales);
  return matrix;
}

Result<const Matrix*> WeightReader::ReadMatrix(const std::string& name, int64_t in, int64_t out,
                                               MatrixLayout layout, MatrixRole role) {
  const bool transpose = layout == MatrixLayout::kOutIn;
  const int64_t rows = transpose ? out : in, cols = transpose ? in : out;
  return Read(name, rows, cols, rows, transpose, role);
}

Result<const Matrix*> WeightReader::ReadVocabulary(const std::string& name, int64_t rows,
                                                   int64_t width, const Edit& edit) {
  const int64_t kept = vocabulary_ == 0 ? rows : std::min(vocabulary_, rows);
  if (!edit) return Read(name, rows, width, kept, /*transpose=*/true, MatrixRole::kFine);
  PS_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_->Get(name, {rows, width}));
  const auto size = static_cast<size_t>(kept * width);
  PS_RETURN_IF_ERROR(CheckTemporaryMemory(name, size * sizeof(float)));
  std::vector<float> values(size);
  tensor.ReadFloats(0, values);
  checkpoint_->Release(tensor);
  edit(values);
  return Pack(name, {values.data(), DataType::kF32, kept, width}, /*transpose=*/true,
              MatrixRole::kFine);
}

Result<std::vector<const Matrix*>> WeightReader::ReadMatrices(const std::string& name,
                                                              int64_t count, int64_t in,
                                                              int64_t out) {
  PS_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_->Get(name, {count, in, out}));
  std::vector<const Matrix*> matrices;
  const int64_t matrix_bytes = in * out * static_cast<int64_t>(TensorTypeBytes(tensor.type));
  for (int64_t i = 0; i < count; ++i) {
    const HostMatrix source{tensor.data + i * matrix_bytes, ToDataType(tensor.type), in, out};
    matrices.push_back(KeepRead(backend_->PackMatrix(source, false, DataType::kF32)));
  }
  checkpoint_->Release(tensor);
  return matrices;
}

Result<const Matrix*> WeightReader::ReadJoined(std::span<const Rows> parts, int64_t in,
                                               const Edit& edit, MatrixRole role) {
  std::vector<TensorView> tensors;
  int64_t rows = 0;
  bool one_type = !edit;  // and kept: rows are copied as they are
  for (const Rows& part : parts) {
    PS_ASSIGN_OR_RETURN(TensorView tensor, checkpoint_->Get(part.name, {part.count, in}));
    tensors.push_back(std::move(tensor));
    one_type = one_type && tensors.back().type == tensors.front().type;
    rows += part.count;
  }
  const DataType type = one_type ? ToDataType(tensors.front().type) : DataType::kF32;
  const size_t row_bytes =
      static_cast<size_t>(in) * (one_type ? TensorTypeBytes(tensors.front().type) : sizeof(float));
  const size_t bytes = static_cast<size_t>(rows) * row_bytes;
  PS_RETURN_IF_ERROR(CheckTemporaryMemory(parts.front().name, bytes));
  std::vector<std::byte> joined(bytes);
  std::byte* next = joined.data();
  for (size_t i = 0; i < parts.size(); ++i) {
    for (int64_t row = 0; row < parts[i].count; ++row, next += row_bytes) {
      const int64_t from = StoredRow(parts[i], row);
      if (one_type) {
        std::memcpy(next, tensors[i].data + static_cast<size_t>(from) * row_bytes, row_bytes);
      } else {
        tensors[i].ReadFloats(from * in, {reinterpret_cast<float*>(next), static_cast<size_t>(in)});
      }
    }
    checkpoint_->Release(tensors[i]);
  }
  if (edit) edit({reinterpret_cast<float*>(joined.data()), static_cast<size_t>(rows * in)});
  return Pack(parts.front().name, {joined.data(), type, rows, in}, /*transpose=*/true, role);
}

Result<const float*> WeightReader::ReadJoinedVector(std::span<const Rows> parts, const Edit& edit) {
  std::vector<float> values;
  for (const Rows& part : parts) {
    const int64_t shape[] = {part.count};
    PS_ASSIGN_OR_RETURN(const std::vector<float> stored, ReadFloats(part.name, shape));
    for (int64_t i = 0; i < part.count; ++i) {
      values.push_back(stored[static_cast<size_t>(StoredRow(part, i))]);
    }
  }
  if (edit) edit(values);
  return KeepVector(values);
}

Result<SketchNetwork> WeightReader::ReadSketchNetwork(const std::string& prefix, int d, int r,
                                                      MatrixLayout layout, const Edit& inputs) {
  const int64_t hidden = int64_t{ModelConfig::kSketchExpansion} * r;
  SketchNetwork network;
  network.input = d;
  network.size = r;
  for (int b = 0; b < 2; ++b) {
    for (int l = 0; l < ModelConfig::kSketchLevels; ++l) {
      const std::string name = StrCat(prefix, "branch", b + 1, ".level", l, ".");
      const int64_t in = l == 0 ? d : r;
      const Edit edit = l == 0 ? inputs : Edit();
      SketchNetwork::Level& level = network.branch[b][l];
      PS_ASSIGN_OR_RETURN(level.norm.scale, ReadVector(name + "norm.scale", in, edit));
      PS_ASSIGN_OR_RETURN(level.norm.bias, ReadVector(name + "norm.bias", in, edit));
      if (edit) {
        const Rows rows[] = {{name + "up.weight", hidden}};
        PS_ASSIGN_OR_RETURN(level.up, ReadJoined(rows, in, edit, MatrixRole::kSketch));
      } else {
        PS_ASSIGN_OR_RETURN(
            level.up, ReadMatrix(name + "up.weight", in, hidden, layout, MatrixRole::kSketch));
      }
      PS_ASSIGN_OR_RETURN(level.down,
                          ReadMatrix(name + "down.weight", hidden, r, layout, MatrixRole::kSketch));
    }
  }
  return network;
}

Result<std::vector<float>> WeightReader::ReadFloats(const std::string& name,
                                                    std::span<const int64_t> shape) {
  PS_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_->Get(name, shape));
  std::vector<float> values(static_cast<size_t>(tensor.size()));
  tensor.ReadFloats(0, values);
  checkpoint_->Release(tensor);
  weights_->parameters += std::ssize(values);
  return values;
}

const float* WeightReader::KeepVector(const std::vector<float>& values) {
  weights_->bytes += std::ssize(values) * static_cast<int64_t>(sizeof(float));
  weights_->vectors.emplace_back(backend_, values.size());
  weights_->vectors.back().CopyIn(values.data());
  return weights_->vectors.back().data();
}

Status WeightReader::CheckCopy(const std::string& name, const std::string& of,
                               std::span<const int64_t> shape) {
  if (!checkpoint_->TypeOf(name)) return Status();
  PS_ASSIGN_OR_RETURN(const TensorView original, checkpoint_->Get(of, shape));
  PS_ASSIGN_OR_RETURN(const TensorView copy, checkpoint_->Get(name, shape));
  const bool equal =
      copy.type == original.type && std::memcmp(copy.data, original.data, copy.bytes) == 0;
  checkpoint_->Release(copy);
  if (equal) return Status();
  return InvalidArgument("tensor ", name, ": expected the values of ", of,
                         ", to which config.json ties it, found others");
}

Status WeightReader::CheckAllRead(std::string_view what,
                                  const std::function<bool(std::string_view)>& ignored) const {
  std::vector<std::string> unused = checkpoint_->UnusedTensors();
  if (ignored) std::erase_if(unused, ignored);
  if (unused.empty()) return Status();
  return InvalidArgument("checkpoint: expected only the tensors of ", what, ", found ",
                         unused.size(), " more, the first \"", unused.front(), "\"");
}

}  // namespace polysketch
