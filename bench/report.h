// What a run prints: lines as rows are finished, or one JSON object at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

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
  nlohmann::json ToJson(const OpTotals& op, const BenchRow& row) const;
  nlohmann::json ToJson(const BenchRow& row) const;
  // The peak that an op is compared with, in operations a second; 0: none.
  double Ceiling(const OpTotals& op) const;

  const ProductPeaks peaks_;
  const bool on_device_;
  const bool as_json_;
  nlohmann::json json_;
};

// Rows of a drift run, as a line of a table each, and as one JSON object.
void Print(const DriftRow& row);
void PrintJson(const BenchOptions& options, const std::vector<DriftRow>& rows);

}  // namespace polysketch::bench
