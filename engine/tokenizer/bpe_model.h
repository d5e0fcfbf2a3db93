// Byte pair encoding (Sennrich, Haddow and Birch, 2016) as Hugging Face's tokenizers compute it:
// the symbols of a word are merged in the order of the ranks of their pairs, the leftmost first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/status.h"

namespace polysketch {

// Immutable and thread-safe.
class BpeModel {
 public:
  struct Spec {
    // The first symbols of a word are its bytes; else its characters.
    bool byte_level = false;
    // The bytes of a token as the word holds them, and its id. No two are equal.
    std::vector<std::pair<std::string, int32_t>> tokens;
    // In the order of their ranks. Both texts, and the two joined, are tokens.
    std::vector<std::pair<std::string, std::string>> merges;
    // A word that is a token is that token, whatever the merges make of it.
    bool ignore_merges = false;
    // The id of a character, or byte, that is no token; -1: it adds nothing.
    int32_t unk_id = -1;
    // Neighbouring characters that are no tokens are one unk_id.
    bool fuse_unk = false;
    // Ids of bytes, for characters that are no tokens; empty, or 256 ids. -1: the byte has none,
    // and a character with such a byte becomes unk_id.
    std::vector<int32_t> byte_ids;
  };
  // INVALID_ARGUMENT for merges of texts that are no tokens.
  static Result<BpeModel> Make(Spec spec);

  // Appends the ids of a word, in time n log n of its bytes.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const;
  // Whether ids may depend on the characters `left` and `right`, beside each other in a word: some
  // token holds them both, or neither is a token and one has an unk_id.
  bool Joins(char32_t left, char32_t right) const;
  bool byte_level() const { return byte_level_; }
  bool whole_words() const { return ignore_merges_; }

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;
  };
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  struct Symbol {
    int32_t id = -1;
    int32_t previous = -1;
    int32_t next = -1;
  };
  struct Candidate;

  // Open addressing: merges are looked up for every pair of every word.
  class MergeTable {
   public:
    // `merges`: number of pairs that will be added.
    void Reserve(size_t merges);
    // Of two equal pairs the last counts, as in Hugging Face's tokenizers.
    void Add(int32_t left, int32_t right, Merge merge);
    const Merge* Find(int32_t left, int32_t right) const;

   private:
    struct Entry {
      uint64_t key = 0;  // 0: free
      Merge merge;
    };
    size_t Slot(uint64_t key) const;
    std::vector<Entry> entries_;
  };

  void FirstSymbols(std::string_view word, std::vector<Symbol>* symbols) const;
  void AddUnknown(std::string_view character, bool* pending, std::vector<Symbol>* symbols) const;
  void MergeFew(std::vector<Symbol>* symbols) const;
  void MergeMany(std::vector<Symbol>* symbols) const;
  // Makes the symbol at `at` and the next one one symbol.
  static void Join(std::vector<Symbol>* symbols, int32_t at, int32_t id);

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool fuse_unk_ = false;
  bool unknown_joins_ = false;  // ids of neighbours that are no tokens depend on each other
  int32_t unk_id_ = -1;
  std::vector<int32_t> byte_ids_;
  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> ids_;
  std::array<int32_t, 256> single_bytes_{};       // byte_level: -1: no token
  std::unordered_map<char32_t, int32_t> single_;  // else: characters that are tokens
  std::unordered_set<uint64_t> joined_;           // neighbours inside of some token
  MergeTable merges_;
};

}  // namespace polysketch
