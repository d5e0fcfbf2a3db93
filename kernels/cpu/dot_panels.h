// Products of rows of 32-bit words with panels of such words: four bytes (q8 weights) or two bf16.
// Included inside the region of isa_begin.h, behind simd.h and epilogue.h.
//
// A Format says what a word is:
//   Sum                          a vector of sums
//   Panel(w, p), Depth(w)        words of a panel and how many rows of them it has
//   Start(w, column)             what the sums of sixteen columns start from
//   Dot(sum, x, w)               sum + the products of a lane's words
//   Scale(w, column)             what Value takes of sixteen columns
//   Value(sum, scale, x, row)    the result
// A sum is one sequence of Dots over all of the depth, so its bits do not depend on the tile.

// Rows of activations as words, `row_size` bytes apart, and their scales where there are some.
struct WordRows {
  uint8_t* bytes;
  int64_t row_size;
  float* scales;
};

// acc[m][n] += words of row m times words of column vector n, over all of a panel's rows. Asks for
// as many cache lines at `ahead`, weights of a later panel: a tile computes for longer than the
// hardware's prefetchers look ahead, and would wait for each panel's first bytes.
template <typename Format, int MR, int NV>
PS_INLINE void DotTile(const uint8_t* x, int64_t x_row, const int8_t* w, int64_t depth,
                       const int8_t* ahead, typename Format::Sum (&acc)[MR][NV]) {
  for (int64_t k = 0; k < depth; ++k) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + k * 64), _MM_HINT_T1);
    I words[NV];
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) words[n] = IntLoad(w + (k * kPanelColumns + n * kLanes) * 4);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const I word = BroadcastBytes(x + m * x_row + k * 4);
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) acc[m][n] = Format::Dot(acc[m][n], word, words[n]);
    }
  }
}

// A panel, and the one that this thread is expected to take next.
struct PanelPair {
  int64_t panel, next;
};

template <typename Format, int MR, int NV>
void DotPanelTile(const WordRows& x, int64_t row, const PackedMatrix& w, PanelPair panels,
                  int first_vector, const Epilogue& e) {
  const int64_t column = panels.panel * kPanelColumns + first_vector * kLanes;
  typename Format::Sum acc[MR][NV];
#pragma GCC unroll 2
  for (int n = 0; n < NV; ++n) {
    const typename Format::Sum start = Format::Start(w, column + n * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) acc[m][n] = start;
  }
  // A panel has two lines a row: the first tile asks for one half of the next, any other for the
  // second half.
  const int64_t depth = Format::Depth(w);
  const int8_t* ahead = Format::Panel(w, panels.next) + (row == 0 ? 0 : depth * 64);
  DotTile<Format, MR, NV>(x.bytes + row * x.row_size, x.row_size,
                          Format::Panel(w, panels.panel) + first_vector * kLanes * 4, depth, ahead,
                          acc);
  V scales[NV];
#pragma GCC unroll 2
  for (int n = 0; n < NV; ++n) scales[n] = Format::Scale(w, column + n * kLanes);
  if (e.bias == nullptr && !e.accumulate && e.columns - column >= NV * kLanes) {
    // Finish without its questions, which cost as much as a short product.
    float* out = e.out + row * e.out_row + column;
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) {
        Store(Format::Value(acc[m][n], scales[n], x, row + m), out + m * e.out_row + n * kLanes);
      }
    }
    return;
  }
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      Finish(e, row + m, column + n * kLanes, Format::Value(acc[m][n], scales[n], x, row + m));
    }
  }
}

template <typename Format, int MR, int NV>
void DotRemainder(int rows, const WordRows& x, int64_t row, const PackedMatrix& w, PanelPair panels,
                  int first_vector, const Epilogue& e) {
  if constexpr (MR > 0) {
    if (rows == MR) {
      DotPanelTile<Format, MR, NV>(x, row, w, panels, first_vector, e);
    } else {
      DotRemainder<Format, MR - 1, NV>(rows, x, row, w, panels, first_vector, e);
    }
  }
}

template <typename Format>
void DotPanel(const WordRows& x, int64_t rows, const PackedMatrix& w, PanelPair panels,
              const Epilogue& e) {
  constexpr int NV = kPanelVectors;
  constexpr int kFull = kTileRows<NV>;
  for (int vector = 0; vector < 2; vector += NV) {
    int64_t row = 0;
    for (; row + kFull <= rows; row += kFull)
      DotPanelTile<Format, kFull, NV>(x, row, w, panels, vector, e);
    DotRemainder<Format, kFull - 1, NV>(static_cast<int>(rows - row), x, row, w, panels, vector, e);
  }
}

// One row against kSingleRowPanels panels side by side.
template <typename Format>
void DotSingleRow(const WordRows& x, const PackedMatrix& w, int64_t panel, const Epilogue& e) {
  typename Format::Sum acc[kSingleRowPanels][2];
#pragma GCC unroll 4
  for (int p = 0; p < kSingleRowPanels; ++p) {
    acc[p][0] = Format::Start(w, (panel + p) * kPanelColumns);
    acc[p][1] = Format::Start(w, (panel + p) * kPanelColumns + kLanes);
  }
  const int64_t depth = Format::Depth(w), panel_size = depth * kPanelColumns * 4;
  const int8_t* first = Format::Panel(w, panel);
  for (int64_t k = 0; k < depth; ++k) {
    const I word = BroadcastBytes(x.bytes + k * 4);
#pragma GCC unroll 4
    for (int p = 0; p < kSingleRowPanels; ++p) {
      const int8_t* words = first + p * panel_size + k * kPanelColumns * 4;
      acc[p][0] = Format::Dot(acc[p][0], word, IntLoad(words));
      acc[p][1] = Format::Dot(acc[p][1], word, IntLoad(words + kLanes * 4));
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kSingleRowPanels; ++p) {
    for (int n = 0; n < 2; ++n) {
      const int64_t column = (panel + p) * kPanelColumns + n * kLanes;
      Finish(e, 0, column, Format::Value(acc[p][n], Format::Scale(w, column), x, 0));
    }
  }
}

// The whole product, by all threads.
template <typename Format>
void DotPanels(Context& ctx, const WordRows& x, int64_t rows, const PackedMatrix& w,
               const Epilogue& e) {
  // A task's panels lie in a row, so that the next one is known. A row or a few want
  // kSingleRowPanels of them side by side; more rows so many tasks that threads end together.
  const bool few = rows <= kTileRows<kPanelVectors>;
  const int64_t wanted = few ? kSingleRowPanels : w.panels() / (4 * ctx.threads());
  const int64_t group = std::clamp<int64_t>(wanted, 1, kSingleRowPanels);
  ctx.pool().ParallelFor((w.panels() + group - 1) / group, [&](int64_t task, int) {
    const int64_t first = task * group;
    const int64_t last = std::min(first + group, w.panels());
    if (rows == 1 && last - first == kSingleRowPanels) {
      DotSingleRow<Format>(x, w, first, e);
      return;
    }
    for (int64_t panel = first; panel < last; ++panel) {
      // Behind a task's last panel the other threads' tasks come first, most likely.
      const int64_t next = panel + 1 < last ? panel + 1 : last + group * (ctx.threads() - 1);
      DotPanel<Format>(x, rows, w, {panel, std::min(next, w.panels() - 1)}, e);
    }
  });
}

// The same by this thread.
template <typename Format>
void DotPanelsAlone(const WordRows& x, int64_t rows, const PackedMatrix& w, const Epilogue& e) {
  for (int64_t panel = 0; panel < w.panels(); ++panel) {
    DotPanel<Format>(x, rows, w, {panel, std::min(panel + 1, w.panels() - 1)}, e);
  }
}
