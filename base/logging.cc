#include "base/logging.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "base/check.h"
#include "base/log_writer.h"
#include "base/utf8.h"

namespace polysketch {
namespace {

std::atomic<int> g_level{static_cast<int>(LogLevel::kInfo)};
std::atomic<bool> g_json{false};

constexpr std::string_view kLevelNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

std::string Timestamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[40];
  const size_t n = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + n, sizeof(text) - n, ".%03dZ", static_cast<int>(millis));
  return text;
}

void AppendQuoted(std::string_view value, std::string* out) {
  out->push_back('"');
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", byte);
      out->append(escape);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

bool NeedsQuotes(std::string_view value) {
  if (value.empty()) return true;
  for (const char c : value) {
    if (c == '"' || c == '\\' || c == '=' || static_cast<unsigned char>(c) <= 0x20 || c == 0x7f) {
      return true;
    }
  }
  return false;
}

std::string TextLine(LogLevel level, std::string_view event,
                     std::initializer_list<LogField> fields) {
  std::string line = StrCat(Timestamp(), " ", kLevelNames[static_cast<int>(level)], " ", event);
  for (const LogField& field : fields) {
    line.append(" ").append(field.key).append("=");
    const std::string value = WholeCharacters(field.value);
    if (NeedsQuotes(value)) {
      AppendQuoted(value, &line);
    } else {
      line.append(value);
    }
  }
  return line;
}

std::string JsonLine(LogLevel level, std::string_view event,
                     std::initializer_list<LogField> fields) {
  std::string line = StrCat("{\"ts\":\"", Timestamp(), "\",\"level\":\"",
                            kLevelNames[static_cast<int>(level)], "\",\"event\":\"", event, "\"");
  for (const LogField& field : fields) {
    line.append(",\"").append(field.key).append("\":");
    AppendQuoted(WholeCharacters(field.value), &line);
  }
  line.append("}");
  return line;
}

std::string Line(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  std::string line = g_json.load(std::memory_order_relaxed) ? JsonLine(level, event, fields)
                                                            : TextLine(level, event, fields);
  line.push_back('\n');
  return line;
}

// Of lines that wait for the reader of stderr.
constexpr size_t kBufferBytes = size_t{1} << 20;

// Made by the first line and never destroyed: static destructors may log.
LogWriter& Writer() {
  static LogWriter* const writer = [] {
    auto* const made = new LogWriter(STDERR_FILENO, kBufferBytes, [](uint64_t count) {
      return Line(LogLevel::kWarning, "log_lines_dropped", {{"count", count}});
    });
    std::atexit([] { FlushLog(); });
    CallBeforeAbort([] { FlushLog(); });
    return made;
  }();
  return *writer;
}

}  // namespace

void SetLogLevel(LogLevel level) { g_level.store(static_cast<int>(level)); }

void SetLogJson(bool json) { g_json.store(json); }

Result<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return InvalidArgument("log level: expected debug, info, warning or error, found \"", name, "\"");
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (static_cast<int>(level) < g_level.load(std::memory_order_relaxed)) return;
  Writer().Write(Line(level, event, fields));
}

void FlushLog(std::chrono::milliseconds patience) { Writer().Flush(patience); }

uint64_t LogLinesDropped() { return Writer().dropped(); }

}  // namespace polysketch
