// What `polysketch score --by-depth` prints.
#pragma once

#include "clients/cpp/depth_losses.h"
#include "clients/cpp/fresh_windows.h"
#include "clients/cpp/json.h"

namespace polysketch {

struct DepthReport {
  WindowShape shape;
  double seconds = 0;
  const char* finish_reason = "";  // why the text was not scored to its end; empty: it was
};

// A table for people.
void PrintDepthTable(const DepthLosses& losses, const DepthReport& report);
// Means and standard errors in nats a token; null: unknown.
Json DepthJson(const DepthLosses& losses, const DepthReport& report);

}  // namespace polysketch
