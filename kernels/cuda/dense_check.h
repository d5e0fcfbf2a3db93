// Whether a library's algorithm gives a row of a 16-bit product the same bits for any number of
// rows. Libraries promise no such thing (docs/numerics.md), so it is found out by computing.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/cuda/device.h"
#include "kernels/cuda/matrix.h"

namespace polysketch::cuda {

// Numbers of rows that an algorithm must support, with the same bits, in ascending order.
inline constexpr int64_t kCheckedRows[] = {1, 2, 7, 16, 33, 64, 200, 512, 1000, 1500, 4096, 8192};

// Computes out [rows, w.out()] = x w; x [rows, w.padded_in()] in the format of w.
using RowsProduct = std::function<void(const uint16_t* x, int64_t rows, float* out)>;

// Whether each row of `multiply` has the same bits for any of kCheckedRows, as far as memory allows.
// False if memory allows fewer than `at_least` rows, and after an error of the device. `multiply`
// runs in a rehearsal too, where it also loads the algorithm's kernels.
bool SameBitsForAnyRows(Device* device, const CudaMatrix& w, int64_t at_least,
                        const RowsProduct& multiply);

}  // namespace polysketch::cuda
