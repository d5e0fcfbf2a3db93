// Compares the dense products of a layer with oneDNN's, by turns in one process. bench/onednn
// builds and runs it. oneDNN has its preferred weight layout and, for 8 bits, quantized
// activations; our time includes their quantization.
#include <dnnl.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "bench/random_floats.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "kernels/new_backend.h"

namespace polysketch::bench {
namespace {

constexpr int kRows = 512;
constexpr int kTurns = 11;
constexpr double kTurnSeconds = 0.02;
constexpr int64_t kShapes[][2] = {{768, 2304}, {768, 768}, {768, 4096}, {2048, 768}};

// x [kRows, in] w [in, out] by oneDNN.
class OneDnnProduct {
 public:
  OneDnnProduct(const dnnl::engine& engine, int64_t in, int64_t out, dnnl::memory::data_type x,
                dnnl::memory::data_type w)
      : stream_(engine) {
    using Tag = dnnl::memory::format_tag;
    const dnnl::memory::desc x_desc({kRows, in}, x, Tag::ab);
    const dnnl::memory::desc w_desc({in, out}, w, Tag::any);
    const dnnl::memory::desc y_desc({kRows, out}, dnnl::memory::data_type::f32, Tag::ab);
    dnnl::primitive_attr attributes;
    if (w == dnnl::memory::data_type::s8) {
      attributes.set_output_scales(1 << 1, std::vector<float>(static_cast<size_t>(out), 0.01f));
    }
    const dnnl::matmul::primitive_desc plan({x_desc, w_desc, y_desc}, attributes, engine);
    name_ = plan.impl_info_str();
    product_ = dnnl::matmul(plan);
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(x_desc, engine)},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(plan.weights_desc(), engine)},
                  {DNNL_ARG_DST, dnnl::memory(y_desc, engine)}};
    const AlignedBuffer<float> values = RandomFloats(std::max(in * kRows, in * out));
    Fill(values, DNNL_ARG_SRC, {{kRows, in}, dnnl::memory::data_type::f32, Tag::ab});
    Fill(values, DNNL_ARG_WEIGHTS, {{in, out}, dnnl::memory::data_type::f32, Tag::ab});
  }

  void Run() {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }
  const std::string& name() const { return name_; }

 private:
  void Fill(const AlignedBuffer<float>& values, int argument, const dnnl::memory::desc& desc) {
    dnnl::memory& to = arguments_.at(argument);
    dnnl::memory from(desc, to.get_engine(), const_cast<float*>(values.data()));
    dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
  }

  dnnl::stream stream_;
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::string name_;
};

// Returns the operations a second of one turn.
template <typename Fn>
double Turn(double operations, const Fn& fn) {
  // Waits until the threads of the other library, which spin after their last product, sleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  fn();
  return operations / SecondsPerCall(kTurnSeconds, fn);
}

struct Format {
  DataType ours;
  dnnl::memory::data_type x, w;
};

void Compare(Backend* backend, const dnnl::engine& engine, const Format& format, int64_t in,
             int64_t out) {
  const AlignedBuffer<float> weights = RandomFloats(in * out), x = RandomFloats(kRows * in);
  AlignedBuffer<float> y(static_cast<size_t>(kRows * out));
  const auto matrix =
      backend->PackMatrix({weights.data(), DataType::kF32, in, out}, false, format.ours);
  OneDnnProduct peer(engine, in, out, format.x, format.w);
  const double operations = 2.0 * kRows * static_cast<double>(in * out);
  std::vector<double> ours, theirs, ratios;
  for (int i = 0; i < kTurns; ++i) {
    ours.push_back(Turn(
        operations, [&] { backend->MatMul(x.data(), kRows, *matrix, nullptr, false, y.data()); }));
    theirs.push_back(Turn(operations, [&] { peer.Run(); }));
    ratios.push_back(ours.back() / theirs.back());
  }
  std::printf("| %s | %d x %ld x %ld | %.0f | %.0f | %.2f | %s |\n",
              std::string(DataTypeName(format.ours)).c_str(), kRows, static_cast<long>(in),
              static_cast<long>(out), Median(ours) / 1e9, Median(theirs) / 1e9, Median(ratios),
              peer.name().c_str());
}

int Main() {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  auto backend = NewCpuBackend(threads);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().message().c_str());
    return 1;
  }
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl_version_t* version = dnnl_version();
  std::printf("oneDNN %d.%d.%d; %s, %d threads; GOP/s, medians of %d turns\n\n", version->major,
              version->minor, version->patch, std::string((*backend)->name()).c_str(), threads,
              kTurns);
  std::printf("| weights | rows x in x out | ours | oneDNN | ratio | its implementation |\n");
  std::printf("|---|---|---|---|---|---|\n");
  using Type = dnnl::memory::data_type;
  constexpr Format kFormats[] = {{DataType::kF32, Type::f32, Type::f32},
                                 {DataType::kBf16, Type::bf16, Type::bf16},
                                 {DataType::kQ8, Type::u8, Type::s8}};
  for (const Format& format : kFormats) {
    for (const auto& [in, out] : kShapes) Compare(backend->get(), engine, format, in, out);
  }
  return 0;
}

}  // namespace
}  // namespace polysketch::bench

int main() { return polysketch::bench::Main(); }
