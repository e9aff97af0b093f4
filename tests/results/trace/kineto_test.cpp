#include "results/trace/kineto.hpp"

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace isobar::results::kineto_test {
namespace {

using testing::HasSubstr;

constexpr double tolerance = 1e-12;

/// One GPU with two streams, with the fields that PyTorch's profiler writes: two kernels of 30 us, a kernel of NCCL of
/// 40 us, of which the second one hides 20 us, and a copy. One thread with nested operators.
constexpr auto two_streams = R"json({
  "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
  "traceEvents": [
    {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 7, "tid": 9, "ts": 1000.0, "dur": 50.0, "args": {}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 7, "tid": 9, "ts": 1010.0, "dur": 20.0, "args": {}},
    {"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm", "pid": 0, "tid": 7, "ts": 1100.0, "dur": 30.0,
     "args": {"device": 0, "context": 1, "stream": 7, "correlation": 11}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "pid": 0,
     "tid": 20, "ts": 1140.0, "dur": 40.0, "args": {"device": 0, "context": 1, "stream": 20, "correlation": 12}},
    {"ph": "X", "cat": "kernel", "name": "vectorized_elementwise_kernel", "pid": 0, "tid": 7, "ts": 1160.0,
     "dur": 30.0, "args": {"device": 0, "context": 1, "stream": 7, "correlation": 13}},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 7, "ts": 1195.0,
     "dur": 5.0, "args": {"device": 0, "context": 1, "stream": 7, "bytes": 4096}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 9, "ts": 1020.0, "dur": 5.0},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1300.0},
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}}
  ]})json";

class Kineto : public testing::Test {
 protected:
  std::optional<KinetoStats> read(const std::string& content) const
  {
    folder_.write("trace.json", content);
    return read_kineto(folder_.path() / "trace.json");
  }
  std::string fault_of(const std::string& content) const
  {
    try {
      read(content);
      return "none";
    } catch (const InputError& fault) {
      return std::string(fault.what()).substr((folder_.path() / "trace.json").string().size());
    }
  }

 private:
  testing_support::TemporaryFolder folder_;
};

TEST_F(Kineto, SumsUpStreamsAndOverlaps)
{
  const auto stats = read(two_streams);
  ASSERT_TRUE(stats);
  EXPECT_NEAR(stats->span.value, 200e-6, tolerance);
  ASSERT_EQ(stats->streams.size(), 3U);
  EXPECT_EQ(stats->streams[0].name, "GPU 0 stream 20");
  EXPECT_EQ(stats->streams[1].name, "GPU 0 stream 7");
  EXPECT_EQ(stats->streams[1].events, 3U);
  EXPECT_NEAR(stats->streams[1].busy.value, 65e-6, tolerance);
  EXPECT_EQ(stats->streams[2].name, "process 7 thread 9");
  EXPECT_EQ(stats->streams[2].events, 2U);
  EXPECT_NEAR(stats->streams[2].busy.value, 50e-6, tolerance);  // one operator is within the other
  ASSERT_EQ(stats->gpus.size(), 1U);
  const auto& gpu = stats->gpus.front();
  EXPECT_NEAR(gpu.compute.value, 60e-6, tolerance);
  EXPECT_NEAR(gpu.communication.value, 40e-6, tolerance);
  EXPECT_NEAR(gpu.hidden.value, 20e-6, tolerance);
  EXPECT_NEAR(gpu.copies.value, 5e-6, tolerance);
  EXPECT_NEAR(gpu.idle.value, 15e-6, tolerance);
}

TEST_F(Kineto, IsWrittenAsJsonAndAsText)
{
  const auto stats = read(two_streams).value();
  const auto json = nlohmann::json::parse(kineto_to_json(stats));
  EXPECT_EQ(json["schema"], "isobar-kineto-stats/1");
  EXPECT_NEAR(json["gpus"][0]["communication_exposed_s"].get<double>(), 20e-6, tolerance);
  EXPECT_EQ(json["streams"][2]["name"], "process 7 thread 9");
  EXPECT_THAT(kineto_to_text(stats), HasSubstr("GPU 0 stream 7"));
  EXPECT_THAT(kineto_to_text(stats), HasSubstr("32.5 %"));
}

TEST_F(Kineto, IgnoresOtherTraces)
{
  EXPECT_FALSE(read(R"({"otherData": {"schema": "isobar-trace/1"}, "traceEvents": []})"));
  EXPECT_FALSE(read("[]"));
  EXPECT_FALSE(read("[{},\n"));
}

TEST_F(Kineto, NeedsNoSchemaVersion)
{
  std::string without = two_streams;
  without.replace(without.find(R"("schemaVersion": 1, )"), 20, "");
  ASSERT_TRUE(read(without));
  EXPECT_EQ(kineto_to_json(*read(without)), kineto_to_json(*read(two_streams)));
}

TEST_F(Kineto, ResolvesNanosecondsDecadesAfterTheEpoch)
{
  // 1,000 copies of 0.3 us, one after the other, 0.1 us apart.
  std::string events;
  for (int i = 0; i < 1000; ++i) {
    events +=
        fmt::format(R"({}{{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 17000000000{:05}.{}00, "dur": 0.300,
                              "args": {{"device": 0, "stream": 7}}}})",
                    i == 0 ? "" : ",", 10'000 + 4 * i / 10, 4 * i % 10);
  }
  const auto stats = read(R"({"schemaVersion": 1, "traceEvents": [)" + events + "]}");
  ASSERT_TRUE(stats);
  EXPECT_NEAR(stats->gpus.front().copies.value, 300e-6, 1e-9);
  EXPECT_NEAR(stats->gpus.front().idle.value, 99.9e-6, 1e-9);
}

TEST_F(Kineto, NamesFaultsOfATrace)
{
  EXPECT_EQ(fault_of("\x1f\x8b\x08"), ": is not a complete gzip file; compress it again");
  EXPECT_THAT(fault_of("{"), HasSubstr("parse error"));
  EXPECT_EQ(fault_of(R"({"schemaVersion": 1, "traceEvents": []})"), ": traceEvents: holds no operators and no kernels");
  EXPECT_EQ(fault_of(R"({"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1,
                         "dur": -1}]})"),
            ": traceEvents[0].dur: less than 0");
  EXPECT_EQ(fault_of("{\"schemaVersion\": 1, \"traceEvents\": [\n{\"ph\": \"X\", \"cat\": \"cpu_op\", \"ts\": NaN}]}"),
            ":2: ts: NaN is not a number in JSON; write a finite one");
  EXPECT_THAT(fault_of(R"({"schemaVersion": 1, "traceEvents": [{"ph": "M"}, {"ph": "X", "cat": "kernel"}]})"),
              HasSubstr(": traceEvents[1]: "));
}

}  // namespace
}  // namespace isobar::results::kineto_test
