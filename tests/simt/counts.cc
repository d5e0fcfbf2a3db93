#include "tests/simt/counts.h"

#include <unistd.h>

#include <cstdio>
#include <map>

#include "tests/simt/simt.h"

namespace simt {
namespace {

constexpr size_t kSector = 32;
constexpr uint8_t kRead = 1, kWritten = 2;

// The sectors of an array of device memory that the current launch has read and written.
struct Sectors {
  const unsigned char* begin = nullptr;
  const unsigned char* end = nullptr;
  std::vector<uint8_t> flags;
};

struct Counter {
  bool running = false;
  // Functions of the standard library may be the instrumented ones: a count in a count is none.
  bool busy = false;
  std::map<const unsigned char*, Sectors> arrays;
  Sectors* last = nullptr;
  std::vector<uint8_t*> touched;
  std::vector<KernelCount> kernels;
  KernelCount* current = nullptr;
};
Counter counter;

Sectors* Find(const unsigned char* address) {
  if (counter.last != nullptr && address >= counter.last->begin && address < counter.last->end) {
    return counter.last;
  }
  const DeviceRange range = ArrayAt(address);
  if (range.size == 0) return nullptr;
  Sectors& sectors = counter.arrays[range.begin];
  if (sectors.end != range.begin + range.size) {  // a new array, perhaps where another one was
    const uint8_t* old = sectors.flags.data();
    std::erase_if(counter.touched, [&](const uint8_t* flags) {
      return flags >= old && flags < old + sectors.flags.size();
    });
    sectors = {range.begin, range.begin + range.size,
               std::vector<uint8_t>(range.size / kSector + 2)};
  }
  return counter.last = &sectors;
}

void Touch(const unsigned char* address, size_t bytes, bool write) {
  Sectors* sectors = Find(address);
  if (sectors == nullptr) return;
  const uint8_t flag = write ? kWritten : kRead;
  const size_t first = static_cast<size_t>(address - sectors->begin) / kSector;
  const size_t last = static_cast<size_t>(address - sectors->begin + bytes - 1) / kSector;
  for (size_t i = first; i <= last; ++i) {
    uint8_t& flags = sectors->flags[i];
    if ((flags & flag) != 0) continue;
    if (flags == 0) counter.touched.push_back(&flags);
    flags |= flag;
    (write ? counter.current->written : counter.current->read) += kSector;
  }
}

// Addresses and names of the functions of this program: its own table of symbols has those of
// anonymous namespaces too.
std::map<uint64_t, std::string> ReadSymbols() {
  std::map<uint64_t, std::string> symbols;
  const std::string command = "nm -C --defined-only /proc/" + std::to_string(getpid()) + "/exe";
  FILE* lines = popen(command.c_str(), "r");
  if (lines == nullptr) return symbols;
  char line[4096];
  while (std::fgets(line, sizeof(line), lines) != nullptr) {
    unsigned long long address = 0;
    char kind = 0;
    int name = 0;
    if (std::sscanf(line, "%llx %c %n", &address, &kind, &name) < 2) continue;
    std::string text(line + name);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    symbols[address] = text;
  }
  pclose(lines);
  return symbols;
}

}  // namespace

void StartCounting() {
  counter.arrays.clear();
  counter.kernels.clear();
  counter.last = nullptr;
  counter.current = nullptr;
  counter.running = true;
}

std::vector<KernelCount> StopCounting() {
  counter.running = false;
  counter.touched.clear();
  return counter.kernels;
}

std::string KernelName(const void* kernel) {
  static const std::map<uint64_t, std::string> symbols = ReadSymbols();
  // The program is loaded somewhere: a function with C linkage says where.
  uint64_t anchor = 0;
  for (const auto& [address, name] : symbols) {
    if (name == "PsSimtSwitch") anchor = address;
  }
  const uint64_t offset = reinterpret_cast<uint64_t>(AnchorFunction()) - anchor;
  const auto found = symbols.find(reinterpret_cast<uint64_t>(kernel) - offset);
  if (found == symbols.end()) return "?";
  // Without its namespaces, parameters and result.
  std::string name = found->second.substr(0, found->second.find("(polysketch"));
  for (const std::string part : {"polysketch::cuda::", "(anonymous namespace)::", "void "}) {
    for (size_t at = name.find(part); at != std::string::npos; at = name.find(part)) {
      name.erase(at, part.size());
    }
  }
  return name.substr(0, name.find('('));
}

void CountLaunch(const void* kernel) {
  if (!counter.running) return;
  counter.busy = true;
  for (uint8_t* flags : counter.touched) *flags = 0;
  counter.touched.clear();
  counter.current = nullptr;
  for (KernelCount& known : counter.kernels) {
    if (known.kernel == kernel) counter.current = &known;
  }
  if (counter.current == nullptr) {
    counter.current = &counter.kernels.emplace_back();
    counter.current->kernel = kernel;
  }
  ++counter.current->launches;
  counter.busy = false;
}

void CountAccess(const void* address, size_t bytes, bool write) {
  if (!counter.running || counter.busy || counter.current == nullptr || !InKernel()) return;
  if (bytes == 0) return;
  counter.busy = true;
  Touch(static_cast<const unsigned char*>(address), bytes, write);
  counter.busy = false;
}

void CountProducts(int count) {
  if (counter.running && counter.current != nullptr) counter.current->products += count;
}

}  // namespace simt
