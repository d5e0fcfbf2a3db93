// The state of a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/byte_buffer.h"
#include "base/status.h"

namespace polysketch {

// Memory that several states may hold together: a block of tokens of their KV caches. It counts
// once.
struct StateBlock {
  const void* id = nullptr;  // unique while a state holds the block
  size_t bytes = 0;
};

// What a layer that holds a block takes for that: a pointer, and an element of StateMemory::blocks.
inline constexpr size_t kBlockReferenceBytes = sizeof(std::shared_ptr<void>) + sizeof(StateBlock);

// The memory of a state.
struct StateMemory {
  size_t own = 0;                       // bytes that no other state holds
  std::vector<StateBlock> blocks = {};  // which others may hold too

  size_t bytes() const {
    size_t sum = own;
    for (const StateBlock& block : blocks) sum += block.bytes;
    return sum;
  }
};

// What attention keeps of one sequence's past tokens, in every layer. The size of a layer is
// constant for recurrent kinds and grows in blocks for KV kinds, where the layer has a window up to
// that. Used by the thread that calls the backend's ops, except that parts may be saved, loaded and
// copied by several threads at once.
class SequenceState {
 public:
  virtual ~SequenceState() = default;
  // Number of tokens processed so far, which is the position of the next token. All layers of a
  // step see the same position; the caller calls Advance after the last layer.
  int64_t position() const { return position_; }
  void Advance(int64_t tokens) { position_ += tokens; }
  // Bytes of memory held.
  virtual size_t bytes() const = 0;
  // The same, with the blocks that other states may hold too.
  virtual StateMemory Memory() const { return {bytes(), {}}; }
  // Bytes of blocks that the next step copies before it writes to them, because others hold them.
  virtual size_t BytesToCopy() const { return 0; }
  virtual std::unique_ptr<SequenceState> Clone() const = 0;
  // Becomes the state of the empty sequence.
  virtual void Reset() = 0;
  // Becomes a copy of `other`, a state of the same backend and spec. Reuses the memory held.
  void CopyFrom(const SequenceState& other) {
    for (int part = 0; part < parts(); ++part) CopyPart(part, other);
    EndParts(other.position());
  }

  // Forgets the tokens from `position` on; afterwards the state is bit for bit the one that never
  // processed them. EarliestTruncation() <= position <= position().
  virtual void Truncate(int64_t position) = 0;
  // Whether copies of the state hold blocks of it, in host memory. No state changes when another
  // one does.
  virtual bool shares() const { return false; }
  // An empty state of the same backend and spec; only with shares().
  virtual std::unique_ptr<SequenceState> NewSharing() const { return nullptr; }
  // Whether CopyPart takes a state that is not known to be of the same backend and spec.
  virtual bool CanCopy(const SequenceState& /*other*/) const { return false; }

  // Lowest position that Truncate accepts, the latest of the layers'
  // (AttentionSpec::EarliestTruncation): at least one token of the current block must remain, since
  // neither folded nor dropped tokens can be removed. 0 if every layer keeps all tokens.
  virtual int64_t EarliestTruncation() const = 0;
  // How many tokens may follow the first `position` ones, at least those of this state, so that
  // they can be removed again.
  virtual int64_t Removable(int64_t position) const = 0;
  // Whether the next token folds a block first, which takes longer, in some layer.
  virtual bool FoldsNext() const = 0;
  // Tokens from the next one to the first end of a block that will be folded; 0 if no layer folds.
  virtual int64_t TokensToFold() const = 0;

  // Number of bytes that Save writes. A function of the position: padding and unused capacity are
  // not saved.
  virtual size_t SavedBytes() const = 0;
  // Writes the state as float32 values in native byte order; out.size() is SavedBytes(). The layout
  // belongs to the backend (kernels/*/state.h) and is the same for all instruction sets of
  // kernels/cpu.
  void Save(std::span<uint8_t> out) const {
    for (int part = 0; part < parts(); ++part) SavePart(part, out);
  }
  // Calls write(bytes) for the bytes that Save writes, in order, a part of them at a time: whole
  // values.
  virtual void SaveInPieces(const std::function<void(std::span<const uint8_t>)>& write) const {
    ByteBuffer all(SavedBytes());
    Save(all);
    write(all);
  }
  // Becomes the state of `position` tokens that Save wrote. INVALID_ARGUMENT if the size does not
  // fit the position or a value is not finite; the state is then that of the empty sequence.
  Status Load(int64_t position, std::span<const uint8_t> bytes) {
    Status status = CheckSavedSize(position, bytes.size());
    for (int part = 0; part < parts() && status.ok(); ++part) {
      status = LoadPart(part, position, bytes);
    }
    status.ok() ? EndParts(position) : Reset();
    return status;
  }

  // Save, Load and CopyFrom in parts, each part once, in any order, at different times and on
  // several threads: so that steps can run in between. What is saved or copied must not change
  // meanwhile. Nothing else may use a state that is loaded or copied to, except Reset, which
  // abandons it, until EndParts.
  virtual int parts() const { return 1; }
  // Whether Save writes KV caches block by block, so that states of the same tokens have the same
  // full blocks.
  virtual bool saves_blocks() const { return true; }
  // `out` is the same memory as for Save.
  virtual void SavePart(int part, std::span<uint8_t> out) const = 0;
  // INVALID_ARGUMENT if a state of `position` tokens is not saved in `size` bytes.
  virtual Status CheckSavedSize(int64_t position, size_t size) const = 0;
  // `bytes` is all that Save wrote, and of the right size. INVALID_ARGUMENT if a value of the part
  // is not finite.
  virtual Status LoadPart(int part, int64_t position, std::span<const uint8_t> bytes) = 0;
  virtual void CopyPart(int part, const SequenceState& other) = 0;
  // Memory of a new state, and the sums of one that was reset, may be cleared at their first use.
  // That takes longer than a step where the system gives memory page by page: 3 to 130 ms for 47
  // MB. ClearPart clears that of a part before, as other parts are loaded, and has no effect on a
  // part that the sequence has used. Nothing is computed with the state meanwhile.
  virtual void ClearPart(int /*part*/) {}
  // Whether every part has been used or cleared since the state was made or reset.
  virtual bool cleared() const { return true; }
  void Clear() {
    for (int part = 0; part < parts(); ++part) ClearPart(part);
  }
  // Called when every part of a state of `position` tokens has been loaded or copied.
  void EndParts(int64_t position) { position_ = position; }

 protected:
  void set_position(int64_t position) { position_ = position; }

 private:
  int64_t position_ = 0;
};

}  // namespace polysketch
