// Products by tile registers (AMX), and a software twin of the same operations that any machine
// runs, so that everything around the instructions is tested everywhere.
#pragma once

#include <cstdint>

namespace polysketch::cpu {

enum class TileUnit { kNone, kAmx, kTwin };

// Rows and columns of a product: two by two tiles of 16 x 16.
inline constexpr int kTileBlock = 32;
// Words of four bytes along the depth that one tile operation takes.
inline constexpr int kTileDepth = 16;
// Bytes that rows of activations are padded to.
inline constexpr int kTileRowBytes = 4 * kTileDepth;

// A thread's use of the tile registers, from its first product to the last. One a thread at a time.
class TileSession {
 public:
  explicit TileSession(TileUnit unit);
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

  // out[m][n] = sum over k < depth4, j < 4 of x[m][4 k + j] * w[k][n][j], exact; m, n < 32.
  // x: unsigned bytes, 32 rows `x_row` bytes apart, each readable up to a multiple of
  // kTileRowBytes; w: signed bytes [depth4][32][4], a panel of q8 weights.
  void Product(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth4,
               int32_t (*out)[kTileBlock]) const;

 private:
  const TileUnit unit_;
};

}  // namespace polysketch::cpu
