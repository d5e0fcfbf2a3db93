// When a sequence of a KV kind is charged with the memory of its state, and how long it keeps it.
#pragma once

namespace polysketch {

enum class KvAdmission {
  // As its state grows, until it ends or is preempted: because it is idle, for a higher level, for
  // the share of another client, or because memory is full and others grow. Its state is dropped,
  // and computed again later, if preempted memory is full.
  kPreempt,
  // With the longest state of its request from its first slot on, until it ends. Another sequence
  // may get its slot while preempted memory has room for its state, but a sequence that lacks
  // memory waits. So no token is computed twice.
  kReserve,
};

}  // namespace polysketch
