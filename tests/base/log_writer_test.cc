// A log whose reader stalls.
#include "base/log_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "base/status.h"
#include "gtest/gtest.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;

std::string Dropped(uint64_t count) { return StrCat("dropped ", count, "\n"); }

struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  // Reads until the text ends with `end`.
  std::string ReadUntil(const std::string& end) {
    std::string text;
    char bytes[4096];
    while (!text.ends_with(end)) {
      const ssize_t count = read(ends[0], bytes, sizeof(bytes));
      if (count <= 0) break;
      text.append(bytes, static_cast<size_t>(count));
    }
    return text;
  }
  int ends[2];
};

TEST(LogWriter, LinesArriveInOrder) {
  Pipe pipe;
  LogWriter log(pipe.ends[1], 1 << 20, Dropped);
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    expected += StrCat("line ", i, "\n");
    log.Write(StrCat("line ", i, "\n"));
  }
  EXPECT_TRUE(log.Flush(60s));
  log.Write("end\n");
  EXPECT_EQ(pipe.ReadUntil("end\n"), expected + "end\n");
  EXPECT_EQ(log.dropped(), 0u);
}

TEST(LogWriter, AStalledReaderCostsLinesAndNoTime) {
  Pipe pipe;
  LogWriter log(pipe.ends[1], 1 << 10, Dropped);
  const std::string line = std::string(99, 'x') + "\n";
  uint64_t lines = 0;
  while (log.Flush(100ms)) {  // until the pipe is full
    for (int i = 0; i < 10; ++i, ++lines) log.Write(line);
  }
  EXPECT_EQ(log.dropped(), 0u);
  // Without a thread of its own the writer would not return.
  for (int i = 0; i < 1000; ++i, ++lines) log.Write(line);
  const uint64_t dropped = log.dropped();
  EXPECT_GE(dropped, 980u);
  const std::string text = pipe.ReadUntil(Dropped(dropped));
  std::string expected;
  for (uint64_t i = 0; i < lines - dropped; ++i) expected += line;
  EXPECT_EQ(text, expected + Dropped(dropped)) << text.size();
  log.Write("after\n");
  EXPECT_EQ(pipe.ReadUntil("after\n"), "after\n");
}

}  // namespace
}  // namespace polysketch
