// How fast codecs are beside memcpy, on one core. The rate of encoding, decoding and copying is that of the float32
// bytes of the values. Each iteration encodes, decodes and copies 64 MiB, far more than caches hold, one after another,
// and `encode_of_memcpy` and `decode_of_memcpy` are medians of the quotients of an iteration.

#include "exec/outer/codecs.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace isobar::exec {

namespace {

template <typename Work>
double seconds_of(Work work)
{
  const auto begin = std::chrono::steady_clock::now();
  work();
  benchmark::ClobberMemory();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values)
{
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

void code(benchmark::State& state, const std::string& text)
{
  constexpr std::size_t count = (std::size_t{64} << 20) / sizeof(float);
  const Codec codec = codec_from_text(text);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1e-3F);
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  std::vector<float> copies(count);
  std::vector<float> decoded(count);
  std::vector<std::byte> bytes(encoded_bytes(codec, count));
  std::vector<double> encodes;
  std::vector<double> decodes;
  std::vector<double> rates;
  for ([[maybe_unused]] auto _ : state) {
    const double encoding = seconds_of([&] { encode(codec, values, bytes); });
    const double copying = seconds_of([&] { std::memcpy(copies.data(), values.data(), count * sizeof(float)); });
    const double decoding = seconds_of([&] { decode(codec, bytes, decoded); });
    encodes.push_back(copying / encoding);
    decodes.push_back(copying / decoding);
    rates.push_back(static_cast<double>(count * sizeof(float)) / copying / 1e9);
  }
  state.counters["encode_of_memcpy"] = median(encodes);
  state.counters["decode_of_memcpy"] = median(decodes);
  state.counters["memcpy_GB_per_s"] = median(rates);
}

BENCHMARK_CAPTURE(code, fp32, std::string("fp32"))->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(code, bf16, std::string("bf16"))->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(code, int8, std::string("int8"))->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(code, int4, std::string("int4"))->Iterations(30)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(code, top_k, std::string("top-k 0.015625"))->Iterations(5)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(code, top_k_2_bit, std::string("top-k 0.015625 2-bit"))->Iterations(5)->Unit(benchmark::kMillisecond);

}  // namespace

}  // namespace isobar::exec

BENCHMARK_MAIN();
