// What happens to a finished product before it is stored. Included inside the region of
// isa_begin.h, behind simd.h.

// Where a finished tile goes: columns [column, column + 32) of the result, of which `columns`
// exist.
struct Epilogue {
  const float* bias;  // of all columns, or null
  bool accumulate;
  float* out;
  int64_t out_row;
  int64_t columns;  // of the whole result
};

PS_INLINE void Finish(const Epilogue& e, int64_t row, int64_t column, V value) {
  const int64_t left = e.columns - column;
  if (left <= 0) return;
  float* out = e.out + row * e.out_row + column;
  if (left >= kLanes) {
    if (e.bias != nullptr) value = Add(value, Load(e.bias + column));
    if (e.accumulate) value = Add(value, Load(out));
    Store(value, out);
    return;
  }
  const Mask mask = FirstN(static_cast<int>(left));
  if (e.bias != nullptr) value = Add(value, LoadMasked(e.bias + column, mask));
  if (e.accumulate) value = Add(value, LoadMasked(out, mask));
  StoreMasked(value, out, mask);
}
