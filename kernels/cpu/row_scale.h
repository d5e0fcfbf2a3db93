// The scale of a row of activations. Included inside the region of isa_begin.h, after simd.h.

PS_INLINE QuantScale RowScale(const float* x, int64_t width) {
  I largest = IntZero();
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) largest = MaxMagnitude(largest, Load(x + i));
  if (i < width) {
    largest = MaxMagnitude(largest, LoadMasked(x + i, FirstN(static_cast<int>(width - i))));
  }
  return QuantScale::Of(ReduceMagnitude(largest));
}
