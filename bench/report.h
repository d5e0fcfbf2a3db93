// Output of a run: a line for each finished row, or one JSON object at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "bench/drift.h"
#include "bench/kernel_bench.h"
#include "bench/model_bench.h"

namespace polysketch::bench {

class Report {
 public:
  Report(const BenchOptions& options, const std::string& backend, const ProductPeaks& peaks,
         bool as_json);
  void Add(const BenchRow& row);
  void Add(const KernelRow& row);
  void Finish();

 private:
  void Print(const BenchRow& row) const;
  void Print(const OpTotals& op, const BenchRow& row) const;
  void Print(const KernelRow& row) const;
  nlohmann::json ToJson(const BenchRow& row) const;
  const ProductPeaks peaks_;
  const bool on_device_;
  const bool as_json_;
  nlohmann::json json_;
};

// Prints a line of the drift table.
void Print(const DriftRow& row);
// Prints all rows as one JSON object.
void PrintJson(const BenchOptions& options, const std::vector<DriftRow>& rows);

}  // namespace polysketch::bench
