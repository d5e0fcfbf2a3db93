// THE interface between a model and the machine: a backend owns weights in its own layout, sequence
// states, and the ops of a forward pass. Implementations: kernels/reference (scalar, the oracle)
// and kernels/cpu (vectorised, one file an op in both, same names).
//
// Contract of every op
// - Rows are tokens (or token-head pairs); a row's result is one fixed sequence of floating-point
// operations that depends on
//   that row and, in Attention, on its own sequence's past: never on the number of rows, the split
//   of a segment, the threads or the neighbours. Tests compare bits.
// - Pointers are float32 arrays in backend memory (NewArray), row-major, contiguous unless a stride
// is given; out never overlaps an
//   input unless said.
// - Shapes are our own: a mismatch is a bug (PS_CHECK), never a Status.
// - Called by one thread at a time (the engine thread); a backend parallelises inside.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/attention_spec.h"
#include "kernels/row_sampling.h"
#include "kernels/segment.h"

namespace polysketch {

class ThreadPool;

// The quantised types are those of kernels/quantize.h: kQ8 has 8-bit integers with one float32
// scale for each output column, kQ4 4-bit integers with a bf16 scale for each 32 rows of a column.
// Products with them quantise the activations of each row too.
enum class DataType { kF32, kF16, kBf16, kQ8, kQ4 };

// "f32", "f16", "bf16", "q8", "q4".
std::string_view DataTypeName(DataType type);
// Its inverse; nothing for another name.
std::optional<DataType> DataTypeOf(std::string_view name);
// All of them, widest first.
std::span<const DataType> AllDataTypes();
bool IsQuantized(DataType type);
// Bytes of an element of kF32, kF16, kBf16 or kQ8.
int64_t DataTypeBytes(DataType type);

// A dense matrix as it stands in a checkpoint: row-major, any alignment.
struct HostMatrix {
  const void* data = nullptr;
  DataType type = DataType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  // Of the quantised types (docs/model-format.md, "Quantised tensors"). kQ8: float32, one for each
  // column, or for each row when `scale_rows`. kQ4: bf16 [ceil(rows / 32), cols]; data holds two
  // elements a byte.
  const void* scales = nullptr;
  bool scale_rows = false;
};

// Bytes of a matrix [in, out] of that type, scales included.
int64_t MatrixBytes(int64_t in, int64_t out, DataType type);

// A weight matrix [in, out], packed by the backend that made it.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  DataType type() const { return type_; }
  // Bytes that one pass over the matrix reads, scales included.
  int64_t bytes() const { return MatrixBytes(in_, out_, type_); }

 protected:
  Matrix(int64_t in, int64_t out, DataType type) : in_(in), out_(out), type_(type) {}

 private:
  int64_t in_, out_;
  DataType type_;
};

// Scale and bias of a layer norm, each [width].
struct NormWeights {
  const float* scale = nullptr;
  const float* bias = nullptr;
};

// g of the learned kinds: two branches of two levels, each x -> LN(x) up -> gelu -> down.
// g(x) = sqrt(r) tanh(x1 * x2 / sqrt(r)).
struct SketchNetwork {
  struct Level {
    NormWeights norm;    // [in]
    const Matrix* up;    // [in, 8 r]
    const Matrix* down;  // [8 r, r]
  };
  Level branch[2][2];  // [branch][level]; in = d at level 0, r at level 1
  int input = 0;       // d
  int size = 0;        // r
};

// f of the random kinds, of degree 2^levels: level 0 holds 2^levels matrices [d, r], level l
// 2^(levels-l) of [r, r]. Products of neighbours halve the number of vectors behind every level
// until one is left. Models keep these matrices in float32 (weights.cc, Random).
struct RandomSketch {
  std::span<const std::span<const Matrix* const>> levels;
  int input = 0;  // d
  int size = 0;   // r
};

// The past of one sequence in every layer. Fixed size for the recurrent kinds; grows by blocks for
// KV kinds.
class SequenceState {
 public:
  virtual ~SequenceState() = default;
  // Tokens seen so far: the position of the next one. Attention of every layer sees the same value
  // during a step; Advance moves it on when the step is done.
  int64_t position() const { return position_; }
  void Advance(int64_t tokens) { position_ += tokens; }
  // Bytes held now.
  virtual size_t bytes() const = 0;
  virtual std::unique_ptr<SequenceState> Clone() const = 0;
  // Back to the empty sequence.
  virtual void Reset() = 0;
  // Becomes a copy of `other`, a state of the same backend and spec; copies what is alive, into the
  // memory that is there.
  virtual void CopyFrom(const SequenceState& other) = 0;

  // Forgets the tokens from `position` on: as if they had never been processed, bit for bit.
  // EarliestTruncation() <= position <= position().
  virtual void Truncate(int64_t position) = 0;
  // Folded tokens stay: a cut must leave at least one token of the block in the buffer
  // (AttentionSpec::EarliestTruncation). 0 for KV kinds.
  virtual int64_t EarliestTruncation() const = 0;

  // Bytes that Save writes: a function of the position, without padding and unused room.
  virtual size_t SavedBytes() const = 0;
  // The past as float32 values in native byte order; out.size() is SavedBytes(). The layout belongs
  // to the backend (kernels/*/state.h); the same for all instruction sets of kernels/cpu.
  void Save(std::span<uint8_t> out) const {
    for (int part = 0; part < saved_parts(); ++part) SavePart(part, out);
  }
  // The same in parts, which may be written at different times, in any order and on several
  // threads, while the state stays as it is; out as for Save.
  virtual int saved_parts() const { return 1; }
  virtual void SavePart(int part, std::span<uint8_t> out) const = 0;
  // Becomes the state of `position` tokens that Save wrote. INVALID_ARGUMENT says what is wrong
  // (size, a value that is not finite) and leaves this state as it was.
  virtual Status Load(int64_t position, std::span<const uint8_t> bytes) = 0;

 protected:
  void set_position(int64_t position) { position_ = position; }

 private:
  int64_t position_ = 0;
};

struct AttentionInput {
  const float* near_q = nullptr;  // [M, H, near_dim]
  const float* near_k = nullptr;  // [M, H, near_dim]
  const float* far_q =
      nullptr;  // [M, H, far_dim]; the same pointers as near_* in unmixed kinds; null for KV kinds
  const float* far_k = nullptr;
  const float* v = nullptr;  // head h of row m at v + m * v_stride + h * d
  int64_t v_stride = 0;      // in floats
};

// A step of a model as a whole: all that its ops are told besides weights and arrays, which are the
// same ones in every step of that model with the same `variant`.
struct StepInput {
  const void* model = nullptr;
  const AttentionSpec* spec = nullptr;
  std::span<const int32_t> tokens;
  std::span<const int64_t> positions;
  std::span<const Segment> segments;
  int64_t variant = 0;  // negative: unlike any other step
};

// Bytes of a device's memory: held by a backend, and free.
struct DeviceMemory {
  size_t held = 0, free = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "reference", "cpu/avx512", ...
  virtual std::string_view name() const = 0;
  virtual int threads() const = 0;
  // The host's threads that ops run on, for the caller between two ops; null: they run elsewhere.
  virtual ThreadPool* pool() { return nullptr; }

  // The first error of the device. Once there is one, nothing that the backend computed since may
  // be used; its calls neither crash nor block. Always OK where the host computes.
  virtual Status status() const { return Status(); }

  // --- memory ---
  // Whether ops take any array of the host's memory.
  virtual bool host_memory() const { return true; }
  // Arrays that the ops read and write; BackendArray below owns one. Zero-filled; aligned to 64
  // bytes.
  virtual float* NewArray(size_t size);
  virtual void DeleteArray(float* array);
  // Both are done when they return.
  virtual void CopyIn(const float* host, size_t size, float* array);
  virtual void CopyOut(const float* array, size_t size, float* host);
  // A packed copy of w [in, out], or of its transpose when `transpose` (w is [out, in] then),
  // stored as `type`. A quantised w keeps its integers when its type is the same and its scales
  // belong to columns of the result.
  virtual std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                                   DataType type) = 0;
  virtual std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec) = 0;
  // Of a memory that is not the host's: makes the room that any step of at most `rows` rows in at
  // most `segments` segments needs beside states, and the `growing` bytes that states of a KV kind
  // take together at most, so that none asks for memory. `ops` calls the ops of a step of so many
  // rows and no segments, and does nothing else here.
  virtual void Reserve(const AttentionSpec& /*spec*/, int64_t /*rows*/, int64_t /*segments*/,
                       size_t /*growing*/, const std::function<void()>& /*ops*/) {}
  virtual DeviceMemory device_memory() { return {}; }
  // Bytes of a state that has seen `tokens` tokens.
  virtual size_t StateBytes(const AttentionSpec& spec, int64_t tokens) const = 0;

  // --- ops ---
  // out[m] = column tokens[m] of E [D, V] + PE(positions[m]); PE[t] interleaves sin(t theta_i),
  // cos(t theta_i), theta_i = 10000^(-i/(D/2)) rounded to float32, angles exact. out [M, D].
  virtual void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
                     std::span<const int64_t> positions, float* out) = 0;
  // out[m] = (x[m] - mean) / sqrt(variance + 1e-5) * scale + bias, biased variance. x, out [rows,
  // width]; out may be x.
  virtual void LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm,
                         float* out) = 0;
  // out = x w (+ bias [out]) (+ out when `accumulate`). x [rows, in], out [rows, out]. k runs in
  // order, one accumulator for each output element, starting from zero; bias and old values are
  // added at the end.
  virtual void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias,
                      bool accumulate, float* out) = 0;
  // Rotates q and k of qkv [M, 3, H, d] to q, k [M, H, d]: theta_i = 10000^(-2i/d); input pairs
  // (2i, 2i+1), output halves: out[i] = x[2i] cos - x[2i+1] sin, out[d/2+i] = x[2i+1] cos + x[2i]
  // sin.
  virtual void Rope(const float* qkv, std::span<const int64_t> positions, int heads, int head_dim,
                    float* q, float* k) = 0;
  // out[m] = u * gelu(g), [u, g] = up[m]; gelu in its tanh form. up [rows, 2 hidden], out [rows,
  // hidden].
  virtual void GeluGate(const float* up, int64_t rows, int hidden, float* out) = 0;
  // out[m][0..r) = g(x[m]), columns r .. round_up(r, 8) zero. x [rows, d], out [rows, round_up(r,
  // 8)].
  virtual void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows,
                             float* out) = 0;
  // The same shapes for f.
  virtual void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                                 float* out) = 0;
  // out = elu(x) + 1. x, out [rows, width].
  virtual void LinearFeatures(const float* x, int64_t rows, int width, float* out) = 0;
  // out = exp(x' omega - |x'|^2 / 2) / sqrt(m), x' = x / d^(1/4). omega [d, m], x [rows, d], out
  // [rows, m].
  virtual void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) = 0;
  // One contract for a segment of any length, a decode step and a chunk of a prompt alike: reads
  // each state, appends the segment's keys and values, folds the blocks that it passes. out [M, H,
  // d]:
  //   out_t = sum_s w[t,s] v_s / (c + sum_s w[t,s]), s <= t. Weights by spec.kind (model.md, "The
  //   attention kinds").
  // Far part: read from the state as it stood at the start of t's block. Near part: over s in order
  // from the start of t's block. A block is folded when the first token behind it arrives: summed
  // from zero in token order, added once.
  virtual void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                         const AttentionInput& input, float* out) = 0;
  // out[m] = log sum_j exp(x[m][j]). x [rows, width].
  virtual void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) = 0;

  // Runs `ops`, which calls the ops of `step` and nothing else of this backend, and does not wait;
  // a backend may run what it recorded of an earlier step of the same shape in its place.
  virtual void RunStep(const StepInput& /*step*/, const std::function<void()>& ops) { ops(); }

  // --- drawing, where logits are not in the host's memory ---
  // Whether SampleRows is there. Elsewhere the host's sampler looks at the logits.
  virtual bool samples_rows() const { return false; }
  // answers[m] to queries[m] about logits [queries.size(), width], which stay as they are. Waits
  // for them.
  virtual void SampleRows(float* /*logits*/, int64_t /*width*/,
                          std::span<const SampleQuery> /*queries*/,
                          std::span<SampleResult> /*answers*/) {}
  // Waits for all ops before it.
  virtual void Wait() {}
};

// An array of a backend; goes before the backend does.
class BackendArray {
 public:
  BackendArray() = default;
  BackendArray(Backend* backend, size_t size)
      : backend_(backend), data_(backend->NewArray(size)), size_(size) {}
  ~BackendArray() {
    if (backend_ != nullptr) backend_->DeleteArray(data_);
  }
  BackendArray(BackendArray&& other) noexcept { *this = std::move(other); }
  BackendArray& operator=(BackendArray&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  float* data() const { return data_; }
  size_t size() const { return size_; }
  void CopyIn(const float* host) { backend_->CopyIn(host, size_, data_); }

 private:
  Backend* backend_ = nullptr;
  float* data_ = nullptr;
  size_t size_ = 0;
};

// kernels/reference: scalar; S in float32, or in float64 when `float64_state` (to measure drift).
std::unique_ptr<Backend> NewReferenceBackend(bool float64_state = false);

// kernels/cuda: a library of its own, opened now: the file that environment variable
// POLYSKETCH_CUDA_LIBRARY names, or libpolysketch-cuda.so beside the program or in ../lib.
// FAILED_PRECONDITION says what is missing: the library, the driver, a GPU.
Result<std::unique_ptr<Backend>> NewCudaBackend();

// kernels/cpu: the fastest instruction set of this machine, or the one that environment variable
// POLYSKETCH_ISA names (avx2, avx512, avx512vnni, avx512bf16, avx512amx); FAILED_PRECONDITION when
// the machine lacks it or the name is unknown. avx512bf16 rounds activations to bf16 where weights
// are bf16, and is taken where a measurement at the first call finds it faster.
Result<std::unique_ptr<Backend>> NewCpuBackend(int threads);
// For tests: a given instruction set. Names as in SupportedCpuIsas().
Result<std::unique_ptr<Backend>> NewCpuBackend(int threads, std::string_view isa);
// The compiled instruction sets ("avx2", "avx512") that this machine can run, slowest first.
std::vector<std::string> SupportedCpuIsas();
// All compiled instruction sets.
std::vector<std::string> CompiledCpuIsas();

}  // namespace polysketch
