// Products of rows of 32-bit words with panels of 32-bit words: four bytes (q8 weights) or two
// bf16.
//
// A Format defines the arithmetic of a word:
//   Sum                          a vector of sums
//   Start(w, column)             the initial value of the sums of sixteen columns
//   Dot(sum, x, w)               sum + the dot products of each lane's words
//   Scale(w, column)             what Value needs of sixteen columns
//   Value(sum, scale, x, row)    the result
// A sum is one sequence of Dots over the whole depth, so its bits do not depend on the tile.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/cpu/gate_lanes.h"
#include "kernels/cpu/panel_tiles.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/simd.h"

#include "kernels/cpu/isa_begin.inc"

// Rows of activations as words, `row_size` bytes apart; a scale for each row, or null. magnitudes:
// null, or where a Format's Value keeps the largest |result| of each row, in 16 lanes.
struct WordRows {
  uint8_t* bytes;
  int64_t row_size;
  float* scales;
  int32_t* magnitudes = nullptr;
};

// acc[m][n] += words of row m times words of column vector n, over all rows of a panel. Prefetches
// as many cache lines at `ahead`, the weights of a later panel: a tile computes for longer than the
// hardware's prefetchers look ahead, and would wait for the first bytes of each panel.
template <typename Format, int MR, int NV>
PS_INLINE void DotTile(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth,
                       const int8_t* ahead, typename Format::Sum (&acc)[MR][NV]) {
  const int64_t odd[6] = {x_row, 3 * x_row, 5 * x_row, 7 * x_row, 9 * x_row, 11 * x_row};
  for (int64_t k = 0; k < depth; ++k) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + k * 64), _MM_HINT_T1);
    I words[NV];
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) words[n] = IntLoad(w + (k * kPanelColumns + n * kLanes) * 4);
    const auto add_row = [&]<int m>() __attribute__((always_inline)) {
      const I word = BroadcastRow<m>(x + k * 4, odd);
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) acc[m][n] = Format::Dot(acc[m][n], word, words[n]);
    };
    [&]<int... m>(std::integer_sequence<int, m...>) __attribute__((always_inline)) {
      (add_row.template operator()<m>(), ...);
    }
    (std::make_integer_sequence<int, MR>());
  }
}

// A panel, and the panel that this thread probably processes next.
struct PanelPair {
  int64_t panel, next;
};

// The sums of MR rows from `row` on and NV vectors of a panel.
template <typename Format, int MR, int NV>
PS_INLINE void DotSums(const PackedMatrix& w, const WordRows& x, int64_t row, bool first_tile,
                       PanelPair panels, int first_vector, typename Format::Sum (&acc)[MR][NV]) {
  const int64_t column = panels.panel * kPanelColumns + first_vector * kLanes;
#pragma GCC unroll 2
  for (int n = 0; n < NV; ++n) {
    const typename Format::Sum start = Format::Start(w, column + n * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) acc[m][n] = start;
  }
  // A row of a panel is two cache lines: the first tile prefetches one half of the next panel, the
  // other tiles the second half.
  const int64_t depth = w.depth();
  const int8_t* ahead = w.panel<int8_t>(panels.next) + (first_tile ? 0 : depth * 64);
  DotTile<Format, MR, NV>(x.bytes + row * x.row_size, x.row_size,
                          w.panel<int8_t>(panels.panel) + first_vector * kLanes * 4, depth, ahead,
                          acc);
}

// The result's lines are in another core's cache or in memory, unless the thread is alone: they
// arrive during the product.
template <int MR, int NV>
PS_INLINE void PrefetchResult(const Epilogue& e, int64_t row, int64_t column) {
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
    __builtin_prefetch(e.out + (row + m) * e.out_row + column, 1);
    if constexpr (NV == 2) __builtin_prefetch(e.out + (row + m) * e.out_row + column + kLanes, 1);
  }
}

template <typename Format, int MR, int NV>
void DotPanelTile(const Product& p, const WordRows& x, int64_t row, bool first_tile,
                  PanelPair panels, int first_vector) {
  const PackedMatrix& w = p.w;
  const Epilogue& e = p.epilogue;
  const int64_t column = panels.panel * kPanelColumns + first_vector * kLanes;
  if (p.context != nullptr) PrefetchResult<MR, NV>(e, row, column);
  typename Format::Sum acc[MR][NV];
  DotSums<Format, MR, NV>(w, x, row, first_tile, panels, first_vector, acc);
  V scales[NV];
#pragma GCC unroll 2
  for (int n = 0; n < NV; ++n) scales[n] = Format::Scale(w, column + n * kLanes);
  if (e.bias != nullptr || e.columns - column < NV * kLanes) {
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) {
        Finish(e, row + m, column + n * kLanes, Format::Value(acc[m][n], scales[n], x, row + m));
      }
    }
    return;
  }
  // Without the branches of Finish, which cost as much as a short product.
  float* out = e.out + row * e.out_row + column;
  const auto store = [&](const auto& value) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) {
        float* to = out + m * e.out_row + n * kLanes;
        Store(value(Format::Value(acc[m][n], scales[n], x, row + m), to), to);
      }
    }
  };
  if (e.accumulate) {
    store([](V sum, const float* old)
              __attribute__((always_inline)) { return Add(sum, Load(old)); });
  } else {
    store([](V sum, const float* /*old*/) __attribute__((always_inline)) { return sum; });
  }
}

// A tile of a gated product (Product::gate): the values wait in cache for their gates.
template <typename Format, GateKind kGate, int MR, int NV>
void GatedTile(const Product& p, const WordRows& x, int64_t row, bool first_tile, PanelPair panels,
               int first_vector) {
  const PackedMatrix& w = p.w;
  const Epilogue& e = p.epilogue;
  const int64_t half = w.panels() / 2;
  const int64_t column = panels.panel * kPanelColumns + first_vector * kLanes;
  PrefetchResult<MR, NV>(e, row, column);
  alignas(64) float values[MR][NV * kLanes];
  typename Format::Sum acc[MR][NV];
  // Calls use(m, n, result) for the results of the tile in a panel.
  const auto multiply = [&](PanelPair pair, const auto& use) __attribute__((always_inline)) {
    DotSums<Format, MR, NV>(w, x, row, first_tile, pair, first_vector, acc);
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      const int64_t first = pair.panel * kPanelColumns + (first_vector + n) * kLanes;
      const V scale = Format::Scale(w, first);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) use(m, n, Format::Value(acc[m][n], scale, x, row + m));
    }
  };
  multiply(
      panels, [&](int m, int n, V value)
                  __attribute__((always_inline)) { Store(value, values[m] + n * kLanes); });
  multiply(
      {panels.panel + half, panels.next + half}, [&](int m, int n,
                                                     V gate) __attribute__((always_inline)) {
        Store(GateLanes<kGate>(Load(values[m] + n * kLanes), gate),
              e.out + (row + m) * e.out_row + column + n * kLanes);
      });
}

template <typename Format>
void DotPanel(const Product& p, const WordRows& x, const Range& rows, PanelPair panels) {
  constexpr int NV = kPanelVectors;
  for (int vector = 0; vector < 2; vector += NV) {
    ForRowTiles<kTileRows<NV>>(rows, [&]<int MR>(int64_t row) {
      const bool first = row == rows.first;
      if (p.gate == GateKind::kGelu) {
        return GatedTile<Format, GateKind::kGelu, MR, NV>(p, x, row, first, panels, vector);
      }
      if (p.gate == GateKind::kSilu) {
        return GatedTile<Format, GateKind::kSilu, MR, NV>(p, x, row, first, panels, vector);
      }
      DotPanelTile<Format, MR, NV>(p, x, row, first, panels, vector);
    });
  }
}

// One row times kSingleRowPanels neighbouring panels. With AVX2 it prefetches as many from `next`
// on: its loop is too long for the processor to look far ahead. With AVX-512 that costs more than
// it gains.
template <typename Format>
void DotSingleRow(const Product& p, const WordRows& x, int64_t panel, int64_t next) {
  const PackedMatrix& w = p.w;
  typename Format::Sum acc[kSingleRowPanels][2];
#pragma GCC unroll 4
  for (int i = 0; i < kSingleRowPanels; ++i) {
    acc[i][0] = Format::Start(w, (panel + i) * kPanelColumns);
    acc[i][1] = Format::Start(w, (panel + i) * kPanelColumns + kLanes);
  }
  const int64_t depth = w.depth(), panel_size = depth * kPanelColumns * 4;
  const int8_t* first = w.panel<int8_t>(panel);
  const int64_t ahead = (std::min(next, w.panels() - kSingleRowPanels) - panel) * panel_size;
  for (int64_t k = 0; k < depth; ++k) {
    const I word = BroadcastBytes(x.bytes + k * 4);
#pragma GCC unroll 4
    for (int i = 0; i < kSingleRowPanels; ++i) {
      const int8_t* words = first + i * panel_size + k * kPanelColumns * 4;
      if constexpr (kPanelVectors == 1) {
        __builtin_prefetch(words + ahead, 0, /*locality=*/2);  // to L2
        __builtin_prefetch(words + ahead + 64, 0, /*locality=*/2);
      }
      acc[i][0] = Format::Dot(acc[i][0], word, IntLoad(words));
      acc[i][1] = Format::Dot(acc[i][1], word, IntLoad(words + kLanes * 4));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kSingleRowPanels; ++i) {
    for (int n = 0; n < 2; ++n) {
      const int64_t column = (panel + i) * kPanelColumns + n * kLanes;
      Finish(p.epilogue, 0, column, Format::Value(acc[i][n], Format::Scale(w, column), x, 0));
    }
  }
}

template <typename Format>
void DotPanels(const Product& p, const WordRows& x) {
  const int64_t panels = p.result_panels(), threads = p.threads();
  // Few rows: kSingleRowPanels neighbours at once. Many rows: enough tasks that threads end at
  // about the same time.
  const bool few = p.rows <= kTileRows<kPanelVectors>;
  const int64_t wanted = few ? kSingleRowPanels : panels / (4 * threads);
  const int64_t group = std::clamp<int64_t>(wanted, 1, kSingleRowPanels);
  p.ForPanels(group, [&](const Range& range, const Range& rows, int) {
    if (p.rows == 1 && !p.gate && range.size() == kSingleRowPanels) {
      return DotSingleRow<Format>(p, x, range.first, p.PanelAfter(range.last - 1, range, group));
    }
    for (int64_t panel = range.first; panel < range.last; ++panel) {
      DotPanel<Format>(p, x, rows, {panel, p.PanelAfter(panel, range, group)});
    }
  });
}

#include "kernels/cpu/isa_end.inc"
