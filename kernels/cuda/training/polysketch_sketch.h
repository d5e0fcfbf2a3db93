/* The learned sketch for training: forward and backward over rows, in plain C, part of
 * libpolysketch-attention.so. Two branches of two levels; a level is
 *
 *   y = down gelu(up norm(x))      norm: a layer norm (epsilon 1e-5), gelu: its tanh form
 *
 * and out = sqrt(r) tanh(y1 y2 / sqrt(r)) of the branches' results. Weights are float32 and are
 * rounded to bf16 where they are multiplied; operands are bf16, sums float32.
 *
 * Rows are dense: x and its gradient [rows][input_dim], out and its gradient [rows][sketch_dim], all
 * bf16, aligned to 4 bytes. Functions return a polysketch_attention_status, whose message
 * polysketch_attention_error has; threads, streams and workspaces as in polysketch_attention.h. The
 * bits of a result depend on the shape alone. */
#ifndef POLYSKETCH_KERNELS_CUDA_TRAINING_POLYSKETCH_SKETCH_H_
#define POLYSKETCH_KERNELS_CUDA_TRAINING_POLYSKETCH_SKETCH_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* rows: 1 to 2^31 - 1. Kernels exist for an input_dim of 32 or 64 and a sketch_dim of 16 or 32. */
typedef struct {
  int64_t rows;
  int32_t input_dim, sketch_dim;
} polysketch_sketch_shape;

/* Parameters of a level with `in` inputs, or their gradients; float32, dense, as torch.nn.Linear has
 * them. in: input_dim in the first level, sketch_dim in the second. */
typedef struct {
  float *scale, *bias; /* [in], of the norm */
  float* up;           /* [8 sketch_dim][in] */
  float* down;         /* [sketch_dim][8 sketch_dim] */
} polysketch_sketch_level;

typedef struct {
  polysketch_sketch_level level[2][2]; /* [branch][level] */
} polysketch_sketch_network;

/* Bytes of what the forward pass keeps for the backward pass, and of the backward pass's workspace.
 * Checked against the shared memory of the current device. */
int polysketch_sketch_sizes(const polysketch_sketch_shape* shape, size_t* kept, size_t* workspace);

/* Computes out. kept: the results of all levels, bf16 [level][branch][rows][sketch_dim]; null: there
 * will be no backward pass. */
int polysketch_sketch_forward(const polysketch_sketch_shape* shape,
                              const polysketch_sketch_network* network, const void* x, void* out,
                              void* kept, void* stream);

/* Computes the gradients of sum(out * out_gradient) with respect to x and to all parameters. */
int polysketch_sketch_backward(const polysketch_sketch_shape* shape,
                               const polysketch_sketch_network* network, const void* x,
                               const void* kept, const void* out_gradient, void* x_gradient,
                               const polysketch_sketch_network* gradients, void* workspace,
                               size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* POLYSKETCH_KERNELS_CUDA_TRAINING_POLYSKETCH_SKETCH_H_ */
