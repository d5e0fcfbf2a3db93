// The checksums of a model folder: SHA256SUMS, as sha256sum writes it and checks it (-c).
#pragma once

#include <cstddef>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"

namespace polysketch {

// A file of at most this size is checked at every start: 64 MiB take 0.2 s on a processor without
// instructions for SHA-256.
inline constexpr size_t kAlwaysChecked = size_t{64} << 20;

// Checks that each file which the server reads can be opened (ModelFolder::Open), and the files
// that SHA256SUMS lists: that they exist, and their checksums, of files above kAlwaysChecked only
// if `verify`. INVALID_ARGUMENT with file, expected and found checksum; for a SHA256SUMS that
// cannot be read; and, if `verify`, for a folder without one or whose config.json, weights or
// tokenizer.model it does not list. Without `verify` a folder needs none. Returns the folder; with
// `verify` it has only the files whose checksums are right.
Result<ModelFolder> CheckModelFiles(ModelFolder folder, bool verify);

}  // namespace polysketch
