// Products of rows of 32-bit words with panels of 32-bit words by AMX tiles.
//
// A Format has, besides what dot_panels.h names:
//   TileSum                                    an element of the sums that tiles compute
//   TileProduct(session, x, w, panel, ahead, sums)  the sums of a block of rows and a panel
//   FromTile(w, column, sums)                  sums of sixteen columns, as a Sum
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/dot_panels.h"
#include "kernels/cpu/panel_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

template <typename Format>
void FinishTileRow(const Product& p, const WordRows& x, int64_t row, int64_t column,
                   const typename Format::TileSum* sums) {
  for (int n = 0; n < kPanelColumns; n += kLanes) {
    const typename Format::Sum sum = Format::FromTile(p.w, column + n, sums + n);
    Finish(p.epilogue, row, column + n, Format::Value(sum, Format::Scale(p.w, column + n), x, row));
  }
}

// Multiplies rows by one panel, a block of rows at a time. Each block prefetches an equal part of
// `panels.next`, unless that is the same panel.
template <typename Format>
void TilePanel(const TileSession& session, const Product& p, const WordRows& x, PanelPair panels,
               const Range& rows) {
  static_assert(kTileBlock == kPanelColumns);
  const int64_t depth = p.w.depth();
  const int64_t blocks = (rows.size() + kTileBlock - 1) / kTileBlock;
  // Whole cache lines.
  const int64_t part = (depth * kPanelColumns * 4 / 64 + blocks - 1) / blocks * 64;
  Ahead ahead{p.w.panel<int8_t>(panels.next), panels.next == panels.panel ? 0 : part};
  alignas(64) typename Format::TileSum sums[kTileBlock][kTileBlock];
  for (int64_t row = rows.first; row < rows.last; row += kTileBlock) {
    Format::TileProduct(session, {x.bytes + row * x.row_size, x.row_size}, p.w, panels.panel, ahead,
                        sums);
    const int count = static_cast<int>(std::min<int64_t>(kTileBlock, rows.last - row));
    for (int m = 0; m < count; ++m) {
      FinishTileRow<Format>(p, x, row + m, panels.panel * kPanelColumns, sums[m]);
    }
    ahead.first = static_cast<const int8_t*>(ahead.first) + part;
  }
}

// x: rows in blocks of kTileBlock, each of a multiple of kTileRowBytes, so that whole tiles are
// readable.
template <typename Format>
void TilePanels(const Product& p, const WordRows& x) {
  // A thread alone multiplies by matrices that are in its cache, and prefetches nothing.
  const bool alone = p.context == nullptr;
  const int64_t panels = p.w.panels(), group = alone ? panels : 1;
  const int64_t after = 1 + (p.threads() - 1) / p.RowParts(panels);
  p.ForPanels(group, [&](const Range& range, const Range& rows, int) {
    const TileSession session(p.units.tiles);
    for (int64_t panel = range.first; panel < range.last; ++panel) {
      const int64_t next = panel + after;
      TilePanel<Format>(session, p, x, {panel, alone || next >= panels ? panel : next}, rows);
    }
  });
}

#include "kernels/cpu/isa_end.inc"
