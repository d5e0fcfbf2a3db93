// One recording of the authors' attention functions (tests/data/attention), or a case of another
// folder of tests/data: arrays [batch, heads, tokens, width].
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/testing/environment.h"

namespace polysketch::testing {

class Recording {
 public:
  explicit Recording(const std::string& name, const std::string& folder = "attention")
      : file_(
            std::move(SafetensorsFile::Open(
                          (SourceDir() / "tests/data" / folder / (name + ".safetensors")).string())
                          .value())) {}

  int64_t extent(const std::string& name, int axis) const { return Find(name).shape[axis]; }
  int Int(const std::string& name) const {
    int32_t value;
    Find(name).ReadInts(0, {&value, 1});
    return value;
  }
  bool Has(const std::string& name) const { return file_.tensors().contains(name); }
  std::vector<float> Floats(const std::string& name) const {
    std::vector<float> values(Find(name).size());
    Find(name).ReadFloats(0, values);
    return values;
  }
  std::vector<double> Doubles(const std::string& name) const {
    std::vector<double> values(Find(name).size());
    Find(name).ReadDoubles(0, values);
    return values;
  }
  // Sequence b of the batch as [tokens, heads, width].
  std::vector<float> Rows(const std::string& name, int b) const {
    return Transposed(name, b, Floats(name));
  }
  std::vector<double> DoubleRows(const std::string& name, int b) const {
    return Transposed(name, b, Doubles(name));
  }
  // Head h of the first sequence, [tokens, width].
  std::vector<double> Head(const std::string& name, int h) const {
    const int64_t size = extent(name, 2) * extent(name, 3);
    std::vector<double> values(size);
    Find(name).ReadDoubles(h * size, values);
    return values;
  }

 private:
  const TensorView& Find(const std::string& name) const {
    const auto it = file_.tensors().find(name);
    PS_CHECK(it != file_.tensors().end()) << file_.path() << " lacks " << name;
    return it->second;
  }
  template <typename T>
  std::vector<T> Transposed(const std::string& name, int b, const std::vector<T>& all) const {
    const int64_t heads = extent(name, 1), tokens = extent(name, 2), width = extent(name, 3);
    std::vector<T> rows;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const auto begin = all.begin() + ((b * heads + h) * tokens + t) * width;
        rows.insert(rows.end(), begin, begin + width);
      }
    }
    return rows;
  }

  SafetensorsFile file_;
};

}  // namespace polysketch::testing
