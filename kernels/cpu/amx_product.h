// Products of q8 panels by AMX tile registers, and an emulation of the same tile operations that
// any machine runs, so that the code around the instructions is tested everywhere.
#pragma once

#include <cstdint>

namespace polysketch::cpu {

enum class TileUnit { kNone, kAmx, kEmulated };

// Rows and columns of a product: two by two tiles of 16 x 16.
inline constexpr int kTileBlock = 32;
// Depth of one tile operation, in words of four bytes.
inline constexpr int kTileDepth = 16;
// Rows of activations are padded to a multiple of this many bytes.
inline constexpr int kTileRowBytes = 4 * kTileDepth;

// Configures the calling thread's tile registers as long as the object exists. A thread has one
// session at a time.
class TileSession {
 public:
  explicit TileSession(TileUnit unit);
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

  // out[m][n] = sum over k < depth, j < 4 of x[m][4 k + j] * w[k][n][j], exact; m, n < 32.
  // x: unsigned bytes, 32 rows `x_row` bytes apart, each readable up to a multiple of
  // kTileRowBytes. w: signed bytes [depth][32][4], a panel of q8 weights.
  void Product(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth,
               int32_t (*out)[kTileBlock]) const;

 private:
  const TileUnit unit_;
};

}  // namespace polysketch::cpu
