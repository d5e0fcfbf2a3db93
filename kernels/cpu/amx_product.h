// Products of q8 and bf16 panels by AMX tile registers, and an emulation of the same tile
// operations with the same bits, so that machines without AMX test the code around the
// instructions.
#pragma once

#include <cstdint>

namespace polysketch::cpu {

enum class TileUnit { kNone, kAmx, kEmulated };

// Rows of a tile, and columns of a tile of sums.
inline constexpr int kTileSide = 16;
// Rows and columns of a product: two by two tiles of sums.
inline constexpr int kTileBlock = 2 * kTileSide;
// Depth of one tile operation, in words of four bytes.
inline constexpr int kTileDepth = 16;
// Rows of activations are padded to a multiple of this many bytes.
inline constexpr int kTileRowBytes = 4 * kTileDepth;

// The part of an array that a product prefetches: `bytes` bytes at `first`.
struct Ahead {
  const void* first = nullptr;
  int64_t bytes = 0;
};

// Activations x as rows of words, `row_size` bytes apart, each readable up to a multiple of
// kTileRowBytes.
struct TileRows {
  const uint8_t* bytes;
  int64_t row_size;
};

// Configures the calling thread's tile registers as long as the object exists. A thread has one
// session at a time.
//
// Panels are w [depth][32] words, as packed_matrix.h has them. A word is four bytes or two bf16:
//   bytes  out[m][n] = sum over k < depth, j < 4 of x[m][4 k + j] * w[k][n][j], exact; x unsigned
//   bf16   every 16 words of depth add a sum of float32 to out[m][n], from zero on: the sum over
//          the lower elements of the words plus the sum over the upper ones, each a chain of
//          multiply-adds from zero. Subnormal numbers count as zero, and so do results that small.
//          Elements of x after the depth are zero.
class TileSession {
 public:
  // For blocks of kTileBlock rows.
  explicit TileSession(TileUnit unit) : TileSession(unit, kTileBlock) {}
  // For `rows` rows, 1 to kTileSide, or kTileBlock. An output element has the same bits either way.
  TileSession(TileUnit unit, int rows);
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

  // One panel and a block of kTileBlock rows, m and n < 32.
  void Product(const TileRows& x, const int8_t* w, int64_t depth, const Ahead& ahead,
               int32_t (*out)[kTileBlock]) const;
  void ProductBf16(const TileRows& x, const uint32_t* w, int64_t depth, const Ahead& ahead,
                   float (*out)[kTileBlock]) const;
  // `panels` neighbouring panels, 1 or 2, and the rows of this session: out[panel][m][n].
  void ProductBf16(const TileRows& x, const uint32_t* w, int panels, int64_t depth,
                   float (*out)[kTileSide][kTileBlock]) const;
  // A fold: out[m][n] for a block of rows and `columns` columns, 16 or 32. A row of x is `groups`
  // groups of 32 upper and 32 lower parts, bf16; the parts of a group have the same factors:
  // w [groups][16] rows of words, `w_row` words apart. Each group adds the sum of its upper
  // products to the element, then that of its lower ones, as in ProductBf16.
  void ProductSplit(const TileRows& x, const uint32_t* w, int64_t w_row, int64_t groups,
                    int columns, float* out, int64_t out_row) const;

 private:
  const TileUnit unit_;
  const int rows_;
};

}  // namespace polysketch::cpu
