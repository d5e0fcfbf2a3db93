// The far part: features of queries read the state, features of a full block's keys are folded into
// it. Included inside the region of isa_begin.h, behind simd.h and tile.h.

// phi(x) of a query: packed symmetric products, off-diagonal tiles twice (state.h). x [dim], dim a
// multiple of 8.
static void SymmetricQueryFeatures(const float* x, int dim, float* out) {
  for (int I = 0; I < dim; I += 8) {
    for (int J = I; J < dim; J += 8) {
      const __m256 right = _mm256_loadu_ps(x + J);
      const float factor = I == J ? 1.0f : 2.0f;
      for (int i = I; i < I + 8; ++i, out += 8) {
        _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_set1_ps(factor * x[i]), right));
      }
    }
  }
}

// Sum of phi z over the features, in lanes.
static float FeatureDot(const float* phi, const float* z, int64_t features) {
  V sum = Zero();
  int64_t f = 0;
  for (; f + kLanes <= features; f += kLanes) sum = Fma(Load(phi + f), Load(z + f), sum);
  if (f < features) {
    const Mask mask = FirstN(static_cast<int>(features - f));
    sum = Fma(LoadMasked(phi + f, mask), LoadMasked(z + f, mask), sum);
  }
  return ReduceAdd(sum);
}

// bf16 values as float32; size is a multiple of 16. For what many queries, or a fold, read.
static void Widen(const uint16_t* bits, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += kLanes) Store(LoadBf16(bits + i), out + i);
}

// out [rows][dp] = phi S. `wide`: S in float32 where that was made or is what the state holds, else
// null (upper plane).
static void ReadState(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                      const float* wide, const float* phi, int64_t phi_row, int rows, float* out) {
  const int vectors = static_cast<int>(layout.padded_dim / kLanes);
  if (wide != nullptr) {
    Product(phi, phi_row, 1, rows, spec.features(), RowsF32{wide, layout.padded_dim}, vectors, out,
            layout.padded_dim, false);
  } else {
    const RowsBf16 upper{reinterpret_cast<const uint16_t*>(state.s), layout.padded_dim};
    Product(phi, phi_row, 1, rows, spec.features(), upper, vectors, out, layout.padded_dim, false);
  }
}

// S rows [first, first + count) += sums [count][dp], z likewise.
static void AddToState(const AttentionSpec& spec, const HeadLayout& layout, int64_t first,
                       int count, const float* sums, const float* z_sums, const HeadState& state) {
  const int64_t begin = first * layout.padded_dim, size = count * layout.padded_dim;
  if (spec.state_format == StateFormat::kF32) {
    float* s = state.s + begin;
    for (int64_t i = 0; i < size; i += kLanes) Store(Add(Load(s + i), Load(sums + i)), s + i);
  } else {
    auto* upper = reinterpret_cast<uint16_t*>(state.s) + begin;
    uint16_t* lower = upper + spec.features() * layout.padded_dim;
    for (int64_t i = 0; i < size; i += kLanes) {
      StorePlanes(Add(LoadPlanes(upper + i, lower + i), Load(sums + i)), upper + i, lower + i);
    }
  }
  for (int f = 0; f < count; ++f) state.z[first + f] += z_sums[f];
}

// Features of the block's keys that are folded together: three i of one tile pair, a panel of 24 x
// b that stays in L1.
constexpr int kFoldFeatures = 24;

// Adds the full block to the state: each feature is summed from zero in token order, then added
// once (numerics.md, Drift). values: the block's as float32. scratch: kFoldFeatures * (bp + dp)
// floats.
static void FoldRows(const AttentionSpec& spec, const HeadLayout& layout, const float* panel,
                     const float* values, int64_t first, int count, const HeadState& state,
                     float* sums) {
  const int vectors = static_cast<int>(layout.padded_dim / kLanes);
  float z_sums[kFoldFeatures];
  for (int f = 0; f < count; ++f) {
    V lanes = Zero();
    for (int64_t s = 0; s < layout.padded_block; s += kLanes) {
      lanes = Add(lanes, Load(panel + f * layout.padded_block + s));
    }
    z_sums[f] = ReduceAdd(lanes);
  }
  Product(panel, layout.padded_block, 1, count, spec.block, RowsF32{values, layout.padded_dim},
          vectors, sums, layout.padded_dim, false);
  AddToState(spec, layout, first, count, sums, z_sums, state);
}

template <typename Fn>
PS_INLINE void ForTokens(const HeadLayout& layout, const Fn& fn) {
  for (int64_t s = 0; s < layout.padded_block; s += kLanes) fn(s);
}

static void FoldBlock(const AttentionSpec& spec, const HeadLayout& layout, const HeadState& state,
                      const float* values, float* scratch) {
  float* panel = scratch;
  float* sums = scratch + kFoldFeatures * layout.padded_block;
  const int dim = spec.far_dim();
  const int64_t bp = layout.padded_block;
  if (!spec.sketched()) {
    for (int f = 0; f < dim; f += kFoldFeatures) {
      const int count = std::min(kFoldFeatures, dim - f);
      for (int i = 0; i < count; ++i) {
        ForTokens(
            layout, [&](int64_t s) __attribute__((always_inline)) {
              Store(Load(state.far_keys + KeyIndex(dim, f + i, s)), panel + i * bp + s);
            });
      }
      FoldRows(spec, layout, panel, values, f, count, state, sums);
    }
    return;
  }
  int64_t first = 0;
  int filled = 0;
  for (int I = 0; I < dim; I += 8) {
    for (int J = I; J < dim; J += 8) {
      for (int i = I; i < I + 8; ++i) {
        for (int j = J; j < J + 8; ++j, ++filled) {
          float* row = panel + filled * bp;
          ForTokens(
              layout, [&](int64_t s) __attribute__((always_inline)) {
                const float* a = state.far_keys + KeyIndex(dim, i, s);
                const float* b = state.far_keys + KeyIndex(dim, j, s);
                Store(Mul(Load(a), Load(b)), row + s);
              });
        }
        if (filled == kFoldFeatures) {
          FoldRows(spec, layout, panel, values, first, filled, state, sums);
          first += filled;
          filled = 0;
        }
      }
    }
  }
  if (filled > 0) FoldRows(spec, layout, panel, values, first, filled, state, sums);
}
