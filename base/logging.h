// Structured logs on stderr, one line for each event:
//   2026-11-21T05:23:00.123Z INFO request_done id=r-12 tokens=34 finish=length
// Values with spaces or quotes are quoted. Thread-safe. A thread of its own writes the lines: a
// reader of stderr that stalls costs lines (event log_lines_dropped), not the progress of callers.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

struct LogField {
  template <typename T>
  LogField(std::string_view k, const T& v) : key(k), value(StrCat(v)) {}
  std::string_view key;
  std::string value;
};

// Lines below this level are dropped. Default kInfo.
void SetLogLevel(LogLevel level);
// "debug", "info", "warning" or "error".
Result<LogLevel> ParseLogLevel(std::string_view name);
// Writes JSON lines ({"ts":..., "level":..., "event":..., ...}) in place of the text form.
void SetLogJson(bool json);

// `event` is a snake_case name; fields follow in order.
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

// Waits until the lines so far are written, at most `patience`. A normal exit calls it.
void FlushLog(std::chrono::milliseconds patience = std::chrono::seconds(1));
// Lines that were dropped because the reader of stderr stalled.
uint64_t LogLinesDropped();

inline void LogInfo(std::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(std::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(std::string_view event, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, event, fields);
}

}  // namespace polysketch
