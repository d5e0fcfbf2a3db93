/* Polysketch attention for training: forward and backward over [batch, heads, tokens, width], in
 * plain C, with the kernels of serving (bf16 operands, float32 sums). libpolysketch-attention.so.
 *
 *   out_t = sum_s w[t,s] v_s / (stabilizer + sum_s w[t,s]),  s <= t
 *   w[t,s] = (near_q_t . near_k_s)^near_power   for s in the block of t
 *            (far_q_t . far_k_s)^far_power      for s in earlier blocks
 *
 * With a decay gate w[t,s] is multiplied by e^(G_t - G_s), G the running sum of log_decay.
 *
 * Four forms, by the widths of the shape and the far power:
 *   mixed       near_dim > 0, sketch_dim > 0: both lines above
 *   sketched    near_dim = 0, sketch_dim > 0: near rows are the far rows, near_power is 2
 *   linear      as sketched, far_power = 1: near_power is 1, the features are the rows themselves
 *   polynomial  near_dim > 0, sketch_dim = 0: one block of all tokens, quadratic in their number
 *
 * A sequence may be computed in chunks. The state that one call returns is what the next one starts
 * from: the sums over all tokens before the chunk, as far as a decay gate has kept them by then. The
 * gradient ends at the start of a chunk.
 *
 * The caller pads with zero columns: sketches, queries and keys to a multiple of 8, rows of the linear
 * form to a multiple of 32 (which does not change dot products), values to one of the head sizes.
 *
 * Every function returns a polysketch_attention_status, unless it says otherwise, and may be called
 * from any thread; only the stream orders kernels. Nothing is allocated: the caller provides the
 * workspace, which may be reused once the stream has passed the call. Calls may be captured in a
 * graph.
 */
#ifndef POLYSKETCH_KERNELS_CUDA_TRAINING_POLYSKETCH_ATTENTION_H_
#define POLYSKETCH_KERNELS_CUDA_TRAINING_POLYSKETCH_ATTENTION_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { POLYSKETCH_ATTENTION_VERSION = 6 };

typedef enum {
  POLYSKETCH_ATTENTION_OK = 0,
  POLYSKETCH_ATTENTION_INVALID = 1,     /* invalid sizes, strides or pointers */
  POLYSKETCH_ATTENTION_UNSUPPORTED = 2, /* a width, power or type that no kernel supports, or a pass
                                           that the device has too little shared memory for */
  POLYSKETCH_ATTENTION_WORKSPACE = 3,   /* the workspace is too small or not aligned to 256 bytes */
  POLYSKETCH_ATTENTION_DEVICE = 4       /* CUDA reported an error at a launch */
} polysketch_attention_status;

typedef enum {
  POLYSKETCH_BF16 = 0,
  POLYSKETCH_F32 = 1,
  POLYSKETCH_F16 = 2
} polysketch_attention_type;

/* [batch, heads, tokens, width] in device memory: strides in elements, the last dimension is dense.
 * Inputs are all bf16 or all float16, aligned to 16 bytes, with strides that are multiples of 8.
 * float16 inputs are first rounded to bf16 in the workspace: sums of features need its range.
 * Outputs and gradients have any type, are aligned to two elements and have even strides. */
typedef struct {
  void* data;
  int32_t type; /* polysketch_attention_type */
  int64_t batch_stride, head_stride, token_stride;
} polysketch_attention_tensor;

typedef struct {
  int64_t batch, heads, tokens;
  int32_t head_dim; /* of values and outputs: 32, 64 or 128 */
  int32_t near_dim; /* 0, or a multiple of 8 up to max(64, head_dim) */
  int32_t
      sketch_dim; /* 0, or a multiple of 8 up to max(64, head_dim) + 8; linear: of 32 up to max(64, head_dim) */
  int32_t near_power; /* 1 to 16 */
  int32_t block;      /* tokens, at least 1; not read in the polynomial form */
  float stabilizer;
  int32_t input_type; /* polysketch_attention_type of the inputs and of out_gradient */
  int32_t chunk;      /* 1: calls may have an initial or a final state; else 0 */
  int32_t decay_gate; /* 1: with a decay gate, not in the polynomial form; else 0 */
  int32_t far_power;  /* 2; 1: the linear form */
} polysketch_attention_shape;

/* Arrays that the shape does not have are not read, nor written. */
typedef struct {
  polysketch_attention_tensor near_q, near_k; /* near_dim wide */
  polysketch_attention_tensor far_q, far_k;   /* sketch_dim wide */
  polysketch_attention_tensor v;              /* head_dim wide */
  /* With a decay gate: the log of what it keeps at a token, at most 0, or the gradient with respect to
   * that; dense float32 [batch, heads, tokens]. */
  float* log_decay;
} polysketch_attention_arrays;

/* Sizes of the workspace in bytes; either pointer may be null: then that pass is not checked against
 * the shared memory of the current device. Sizes grow with the tokens; heads are
 * processed in groups that take about a gigabyte. */
int polysketch_attention_workspace(const polysketch_attention_shape* shape, size_t* forward,
                                   size_t* backward);

/* Number of floats of a head's state, F (head_dim + 1) with F = 64 T (T + 1) / 2 features, T =
 * sketch_dim / 8. The features are the products y_i y_j of far_k in tiles of 8 x 8, row by row: tiles
 * (0, 0), (0, 1) to (T - 1, T - 1), those with I <= J. A state is dense float32, aligned to 16 bytes:
 * for each of batch * heads first the sums of features times values [F][head_dim], then the sums of
 * features [F]. In the linear form the features are the sketch_dim elements of far_k. The polynomial
 * form has no state. */
int polysketch_attention_state(const polysketch_attention_shape* shape, size_t* floats);

/* Computes out, and the denominator of each row, dense float32 [batch * heads, tokens], which the
 * backward pass reads. stream: a cudaStream_t.
 *
 * initial_state: of the tokens before the chunk, which starts with a block; null: there are none.
 * final_state: where the state after the chunk is stored, for tokens that are a multiple of the
 * block; null: nowhere. Both must be null unless the shape is that of a chunk. Chunks have the bits
 * of one chunk of all their tokens: of out, denominators, states, and, in the backward pass,
 * gradients of queries. */
int polysketch_attention_forward(const polysketch_attention_shape* shape,
                                 const polysketch_attention_arrays* inputs,
                                 const float* initial_state, const polysketch_attention_tensor* out,
                                 float* denominators, float* final_state, void* workspace,
                                 size_t workspace_bytes, void* stream);

/* Computes the gradients of sum(out * out_gradient) with respect to every array of the inputs. out
 * and denominators are those of the forward pass, and so is initial_state, which gets no gradient;
 * the rules for inputs apply to out_gradient. States are computed again. */
int polysketch_attention_backward(const polysketch_attention_shape* shape,
                                  const polysketch_attention_arrays* inputs,
                                  const float* initial_state,
                                  const polysketch_attention_tensor* out, const float* denominators,
                                  const polysketch_attention_tensor* out_gradient,
                                  const polysketch_attention_arrays* gradients, void* workspace,
                                  size_t workspace_bytes, void* stream);

/* The message of this thread's last call that did not return OK. */
const char* polysketch_attention_error(void);

/* Returns POLYSKETCH_ATTENTION_VERSION of the library. */
int polysketch_attention_version(void);

/* Returns 1 if the library is an emulation on the host (tests/simt), which takes host memory. */
int polysketch_attention_emulated(void);

#ifdef __cplusplus
}
#endif

#endif /* POLYSKETCH_KERNELS_CUDA_TRAINING_POLYSKETCH_ATTENTION_H_ */
