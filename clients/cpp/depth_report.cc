#include "clients/cpp/depth_report.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "base/status.h"

namespace polysketch {
namespace {

// "4.3275 +- 0.0123"; signed: "+0.0400 +- 0.0021".
std::string Cell(const MeanLoss& loss, bool with_sign) {
  char text[64];
  const int end = std::snprintf(text, sizeof(text), with_sign ? "%+.4f" : "%.4f", loss.mean);
  if (std::isfinite(loss.standard_error)) {
    std::snprintf(text + end, sizeof(text) - static_cast<size_t>(end), " +- %.4f",
                  loss.standard_error);
  }
  return text;
}

void PrintRow(const std::string& depth, const std::string& tokens, const std::string& deep,
              const std::string& fresh, const std::string& difference) {
  std::printf("%-18s %9s  %-18s %-18s %s\n", depth.c_str(), tokens.c_str(), deep.c_str(),
              fresh.c_str(), difference.c_str());
}

void PrintBucket(const std::string& depth, const DepthBucket& bucket) {
  PrintRow(depth, StrCat(bucket.tokens), Cell(bucket.deep, false), Cell(bucket.fresh, false),
           Cell(bucket.difference, true));
}

Json LossJson(const MeanLoss& loss) {
  Json json;
  json["mean"] = loss.mean;
  json["standard_error"] = loss.standard_error;  // NaN becomes null
  return json;
}

Json BucketJson(const DepthBucket& bucket) {
  Json json;
  json["begin"] = bucket.begin;
  json["end"] = bucket.end;
  json["tokens"] = bucket.tokens;
  json["deep"] = LossJson(bucket.deep);
  json["fresh"] = LossJson(bucket.fresh);
  json["difference"] = LossJson(bucket.difference);
  return json;
}

}  // namespace

void PrintDepthTable(const DepthLosses& losses, const DepthReport& report) {
  PrintRow("depth", "tokens", "deep", "fresh start", "deep - fresh start");
  for (const DepthBucket& bucket : losses.Buckets()) {
    PrintBucket(StrCat(bucket.begin, " - ", bucket.end - 1), bucket);
  }
  PrintBucket("all", losses.Total());
  std::printf(
      "Nats a token +- standard error, of means of %lld tokens. Depth: tokens before the token.\n"
      "Fresh start: %lld to %lld tokens before it, from an empty state.\n",
      static_cast<long long>(kErrorBlock), static_cast<long long>(report.shape.warm_up + 1),
      static_cast<long long>(report.shape.length));
}

Json DepthJson(const DepthLosses& losses, const DepthReport& report) {
  Json json;
  json["window"] = report.shape.length;
  json["warm_up"] = report.shape.warm_up;
  json["error_block"] = kErrorBlock;
  if (*report.finish_reason != '\0') json["finish_reason"] = report.finish_reason;
  json["seconds"] = report.seconds;
  json["total"] = BucketJson(losses.Total());
  json["buckets"] = Json::array();
  for (const DepthBucket& bucket : losses.Buckets()) json["buckets"].push_back(BucketJson(bucket));
  return json;
}

}  // namespace polysketch
