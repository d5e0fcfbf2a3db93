// How long a sequence keeps the memory of its longest state, which it has from its first slot on.
#pragma once

namespace polysketch {

enum class KvAdmission {
  // Until it ends or is preempted: because it is idle, for a higher level, or for the share of another client. Its
  // state is dropped, and computed again later, if preempted memory is full.
  kPreempt,
  // Until it ends. Another sequence may get its slot while preempted memory has room for its state, but a
  // sequence that lacks memory waits. So no token is computed twice.
  kReserve,
};

}  // namespace polysketch
