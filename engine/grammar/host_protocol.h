// Messages between the server and polysketch-grammar-host, the program that compiles grammars and
// computes token masks. Grammars come from clients: xgrammar takes minutes, gigabytes or the whole
// stack for some of them. Each grammar therefore has a process of its own, which the kernel ends
// above the limits below, and which harms no other request.
//
// Processes:
//   host    started by the server with the vocabulary on its standard input and the control socket
//           as descriptor kControlDescriptor. For each descriptor that arrives on the control
//           socket it forks a worker; the descriptor is the worker's grammar socket.
//   worker  compiles the source that arrives on its grammar socket and answers once: a
//   CompileResult
//           and, with kNotAGrammar, a message. After kOk each descriptor that arrives on the
//           grammar socket opens a walk, which is one sequence. The worker ends when the grammar
//           socket closes.
//
// All sockets are AF_UNIX, SOCK_SEQPACKET: a message arrives whole. Numbers are in the byte order
// of the machine.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace polysketch::grammar_host {

inline constexpr char kProgram[] = "polysketch-grammar-host";
inline constexpr int kControlDescriptor = 3;

// Begins the standard input of the host. The ids of eos_count tokens follow (i32), then for each of
// vocab_size tokens u32 bytes and the bytes that it adds to a text; tokens without bytes are never
// allowed. A worker that exceeds a limit
// answers kExceeded on the socket that it works for, and ends; its other sockets close. While all
// workers together hold more than total_bytes, the one that holds the most answers kNoRoom and
// ends.
struct HostHeader {
  int32_t compile_ms = 0;     // of processor time
  int32_t mask_ms = 0;        // of processor time, for one request of a walk
  uint64_t memory_bytes = 0;  // of data
  uint64_t total_bytes = 0;
  int32_t vocab_size = 0;
  int32_t eos_count = 0;  // the tokens that end an output
};

// Begins the source, whose text follows.
struct SourceHeader {
  uint8_t kind = 0;     // GrammarSource::Kind
  uint8_t compact = 0;  // GrammarSource::compact
};
inline constexpr size_t kMaxSourceMessage = sizeof(SourceHeader) + (size_t{128} << 10);

// First byte of the worker's answer to a source.
enum class CompileResult : uint8_t {
  kOk,
  kNotAGrammar,  // the message says why
  kExceeded,     // a limit
  kNoRoom,       // the limit of all workers
};

// A request of a walk. `count` token ids follow.
struct WalkRequest {
  // kFollow: tokens of the output, which have no answer. kRows: drafts, whose rows are answered.
  enum class Kind : uint32_t { kFollow, kRows };
  Kind kind = Kind::kFollow;
  uint32_t job = 0;  // of kRows: returned in its answers
  uint32_t count = 0;
};
inline constexpr size_t kMaxTokensOfMessage = 4096;

// The answer to one row of kRows, in order. For kOk the words of the mask follow. Any other result
// is the last of its job. Rows after EOS, or after a draft that the grammar does not allow, have no
// answer.
struct MaskReply {
  enum class Kind : uint32_t {
    kOk,
    kDeadEnd,   // no token may follow
    kNoMatch,   // the output does not match the grammar
    kFailed,    // an error of xgrammar
    kExceeded,  // a limit
    kNoRoom,    // the limit of all workers
  };
  Kind kind = Kind::kOk;
  uint32_t job = 0;
};
// Answers of one job together, so that a worker never waits for the reader of a walk.
inline constexpr size_t kMaxAnswerBytes = 64 << 10;
// Answers of one job: the kernel's queue of a socket holds ten messages (net.unix.max_dgram_qlen),
// and those of the job before may wait in it too.
inline constexpr int64_t kMaxAnswers = 5;

}  // namespace polysketch::grammar_host
