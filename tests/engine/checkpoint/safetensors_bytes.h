// Safetensors files byte by byte, for damaging them.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace polysketch::testing {

inline void WriteBytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A file of that header; its length field says `length`, or the truth.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data,
                                    uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  return SafetensorsBytes(header, data, header.size());
}

// "Data" that is not text, not white space and not JSON.
inline std::string DataBytes(size_t size) {
  std::string data(size, '\0');
  for (size_t i = 0; i < size; ++i) data[i] = static_cast<char>(0x81 + i % 100);
  return data;
}

}  // namespace polysketch::testing
