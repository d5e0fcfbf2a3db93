#include "base/check.h"
#include "kernels/reference/backend.h"
#include "kernels/reference/row.h"

namespace polysketch::reference {

void ReferenceBackend::ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                                         float* out) {
  const int stride = (sketch.size + 7) / 8 * 8;
  PS_CHECK(!sketch.levels.empty() && sketch.levels[0].size() == size_t{1} << sketch.levels.size());
  for (int64_t m = 0; m < rows; ++m) {
    const Row input(x + m * sketch.input, x + (m + 1) * sketch.input);
    // The input vectors of a level: at first one copy of x for every matrix of level 0.
    std::vector<Row> vectors(sketch.levels[0].size(), input);
    for (const auto& level : sketch.levels) {
      PS_CHECK(level.size() == vectors.size()) << level.size() << " != " << vectors.size();
      std::vector<Row> products;
      for (size_t j = 0; j < vectors.size(); j += 2) {
        Row left = MultiplyRow(vectors[j], *level[j]);
        const Row right = MultiplyRow(vectors[j + 1], *level[j + 1]);
        for (size_t i = 0; i < left.size(); ++i) left[i] *= right[i];
        products.push_back(std::move(left));
      }
      vectors = std::move(products);
    }
    for (int i = 0; i < stride; ++i) {
      out[m * stride + i] = i < sketch.size ? static_cast<float>(vectors[0][i]) : 0.0f;
    }
  }
}

}  // namespace polysketch::reference
