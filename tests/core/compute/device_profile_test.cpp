#include "core/compute/device_profile.hpp"

#include "core/base/files.hpp"
#include "core/costs/cost_model.hpp"
#include "core/errors.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

namespace isobar::device_profile_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

/// A profile of three layers at 2 GFLOP/s.
DeviceProfile small_profile()
{
  DeviceProfile profile;
  profile.device = "CPU, 1 thread";
  profile.speed = FlopsPerSecond(2e9);
  profile.memory = Bytes(1e9);
  for (const double seconds : {1.0, 2.0, 3.0}) {
    LayerProfile layer;
    layer.name = fmt::format("layer{}", profile.layers.size());
    layer.forward = Seconds(seconds);
    layer.backward = Seconds(3 * seconds);
    layer.update = Seconds(seconds / 10);
    layer.spread_fraction = 0.05;
    layer.activations = Bytes(100 * seconds);
    profile.layers.push_back(layer);
  }
  return profile;
}

MachineProfile small_machine()
{
  MachineProfile machine;
  machine.processor = "CPU, 3 threads";
  machine.memory = Bytes(9e9);
  machine.update_speed = FlopsPerSecond(4e9);
  machine.busy_update_speed = FlopsPerSecond(3e9);
  machine.in = {Seconds(1e-6), BytesPerSecond(5e10)};
  machine.out = {Seconds(2e-6), BytesPerSecond(4e10)};
  machine.disk = DiskProfile{Bytes(1e12), BytesPerSecond(3e9), BytesPerSecond(2e9), true};
  return machine;
}

Workload workload_of(const DeviceProfile& profile)
{
  Workload workload = chain({1, 1, 1});
  for (std::size_t i = 0; i < profile.layers.size(); ++i) workload.layers[i].name = profile.layers[i].name;
  return workload;
}

/// A profile file that is deleted with the object.
class ProfileFile {
 public:
  explicit ProfileFile(const std::string& content) : path_(folder_.write("profile.json", content)) {}

  const std::filesystem::path& path() const { return path_; }
  std::string fault() const
  {
    try {
      read_profile(path_);
    } catch (const InputError& error) {
      return std::string(error.what()).substr(path_.string().size() + 1);
    }
    return "no fault";
  }

 private:
  testing_support::TemporaryFolder folder_;
  std::filesystem::path path_;
};

TEST(DeviceProfile, SurvivesWritingAndReading)
{
  const std::string written = profile_to_json(small_profile());
  const ProfileFile file(written);
  EXPECT_EQ(profile_to_json(read_profile(file.path())), written);
}

TEST(DeviceProfile, KeepsOptionalMembers)
{
  DeviceProfile profile = small_profile();
  {
    const ProfileFile without(profile_to_json(profile));
    EXPECT_FALSE(read_profile(without.path()).machine);
    EXPECT_FALSE(read_profile(without.path()).layers[1].peak);
  }
  profile.layers[1].peak = Bytes(5000);
  profile.layers[1].workspace = Bytes(700);
  profile.machine = small_machine();
  profile.machine->disk.reset();
  const ProfileFile file(profile_to_json(profile));
  EXPECT_EQ(read_profile(file.path()).layers[1].peak, Bytes(5000));
  EXPECT_EQ(read_profile(file.path()).layers[1].workspace, Bytes(700));
  EXPECT_FALSE(read_profile(file.path()).machine.value().disk);
  profile.machine = small_machine();
  const std::string with_disk = profile_to_json(profile);
  const ProfileFile file_with_disk(with_disk);
  EXPECT_EQ(profile_to_json(read_profile(file_with_disk.path())), with_disk);
  const MachineProfile machine = read_profile(file_with_disk.path()).machine.value();
  EXPECT_EQ(machine.processor, "CPU, 3 threads");
  EXPECT_EQ(machine.memory, Bytes(9e9));
  EXPECT_EQ(machine.update_speed, FlopsPerSecond(4e9));
  EXPECT_EQ(machine.busy_update_speed, FlopsPerSecond(3e9));
  EXPECT_EQ(machine.in.latency, Seconds(1e-6));
  EXPECT_EQ(machine.in.bandwidth, BytesPerSecond(5e10));
  EXPECT_EQ(machine.out.latency, Seconds(2e-6));
  EXPECT_EQ(machine.out.bandwidth, BytesPerSecond(4e10));
  EXPECT_EQ(machine.disk.value().capacity, Bytes(1e12));
  EXPECT_EQ(machine.disk.value().read, BytesPerSecond(3e9));
  EXPECT_EQ(machine.disk.value().write, BytesPerSecond(2e9));
  EXPECT_TRUE(machine.disk.value().is_direct);
}

TEST(DeviceProfile, ScalesMeasuredTimesByTheSpeedOfADevice)
{
  const DeviceProfile profile = small_profile();
  Workload workload = workload_of(profile);
  apply_profile(profile, "p.json", workload);
  const Cluster devices = cluster({2e9, 1e9});
  const CostModel costs(workload, devices);
  EXPECT_DOUBLE_EQ(costs.compute_time(0, 0, 2).value, 4 * (1 + 2 + 3));
  EXPECT_DOUBLE_EQ(costs.compute_time(1, 1, 1).value, 2 * 4 * 2);
  EXPECT_DOUBLE_EQ(costs.update_time(0, 0, 2).value, 0.6);
  EXPECT_DOUBLE_EQ(costs.update_time(1, 2, 2).value, 2 * 0.3);
}

TEST(DeviceProfile, SetsTheMemoryOfLayersThatWereMeasured)
{
  DeviceProfile profile = small_profile();
  Workload workload = workload_of(profile);
  const Bytes by_formula = workload.layers[0].activations;
  profile.layers[1].workspace = Bytes(70);
  profile.layers[2].workspace = Bytes(30);
  workload.layers[1].activations = Bytes(400);
  workload.layers[1].split = Split{.name = "columns", .units = 2, .activations = Bytes(100)};
  apply_profile(profile, "p.json", workload);
  EXPECT_EQ(workload.layers[0].activations, by_formula) << "without a workspace";
  EXPECT_EQ(workload.layers[1].activations, Bytes(200));
  EXPECT_EQ(workload.layers[1].split.value().activations, Bytes(50));
  EXPECT_EQ(workload.layers[2].activations, Bytes(300));
  EXPECT_EQ(workload.workspace, Bytes(70));

  // Layer 2 reads one byte, and has the rest of its activations again while it recomputes them.
  workload.layers[1].output = Bytes(1);
  EXPECT_EQ(with_recomputation(workload, {2}).workspace, Bytes(30 + 299));
}

TEST(DeviceProfile, KeepsTheFractionOfTheGradientsOfParameters)
{
  const DeviceProfile profile = small_profile();
  Workload workload = workload_of(profile);
  workload.layers[0].backward_weight = 0.25 * workload.layers[0].backward;
  workload.layers[1].backward = Flops(0);
  workload.layers[1].parameters = 5;
  workload.layers[2].backward = Flops(0);
  workload.layers[2].parameters = 0;
  apply_profile(profile, "p.json", workload);
  EXPECT_DOUBLE_EQ(workload.layers[0].backward_weight.value, 0.25 * 3 * 2e9);
  EXPECT_DOUBLE_EQ(workload.layers[1].backward_weight.value, 0.5 * 6 * 2e9) << "not counted before: the default";
  EXPECT_EQ(workload.layers[2].backward_weight, Flops(0));
}

TEST(DeviceProfile, IsRefusedForAnotherWorkload)
{
  const DeviceProfile profile = small_profile();
  const auto refusal = [&](const std::function<void(Workload&)>& change) {
    Workload workload = workload_of(profile);
    change(workload);
    try {
      apply_profile(profile, "p.json", workload);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no fault");
  };
  EXPECT_EQ(refusal([](Workload&) {}), "no fault");
  EXPECT_EQ(refusal([](Workload& workload) { workload.dtype = DType::BFloat16; }),
            "p.json: dtype: measured in float32; the workload is in bf16");
  EXPECT_EQ(refusal([](Workload& workload) { workload.micro_batch = 7; }),
            "p.json: micro_batch: measured with 1 samples of 1; the workload has 7 of 1");
  EXPECT_EQ(refusal([](Workload& workload) { workload.layers.pop_back(); }),
            "p.json: layers: 3 were measured; the workload has 2");
  EXPECT_EQ(refusal([](Workload& workload) { workload.layers[1].name = "b"; }),
            "p.json: layers[1].name: \"layer1\" was measured; the workload has \"b\"");
}

const std::string rates_alone = R"({
  "schema": "isobar-profile/1",
  "operator_rates": {
    "V100": {
      "flops_per_s": 14e12,
      "memory_bandwidth_bytes_per_s": 7e11,
      "launch_s": 5e-6,
      "efficiency": [
        {"work_flop": 1e9, "fraction": 0.25},
        {"work_flop": 3e9, "fraction": 0.5}
      ]
    },
    "P100": {"flops_per_s": 9e12}
  }
})";

TEST(DeviceProfile, MayHoldRatesOfOperatorsAlone)
{
  const DeviceProfile profile = profile_from_json(rates_alone, "p.json");
  EXPECT_FALSE(profile.has_layers());
  const std::map<std::string, spmd::DeviceRates> expected = {
      {"P100", {FlopsPerSecond(9e12)}},
      {"V100", {FlopsPerSecond(14e12), BytesPerSecond(7e11), Seconds(5e-6), {{Flops(1e9), 0.25}, {Flops(3e9), 0.5}}}}};
  EXPECT_EQ(profile.operator_rates, expected);
  const std::string written = profile_to_json(profile);
  EXPECT_EQ(profile_from_json(written, "p.json").operator_rates, expected);
  EXPECT_EQ(written.find("layers"), std::string::npos);
  DeviceProfile both = small_profile();
  both.operator_rates = expected;
  const DeviceProfile read = profile_from_json(profile_to_json(both), "p.json");
  EXPECT_TRUE(read.has_layers());
  EXPECT_EQ(read.layers.size(), both.layers.size());
  EXPECT_EQ(read.operator_rates, expected);
}

TEST(DeviceProfile, GivesRatesToWorkloadsOfOperators)
{
  const DeviceProfile profile = profile_from_json(rates_alone, "p.json");
  const std::string moe = "model: moe\ntrunk: plain\nlayers: 1\nhidden: 8\nheads: 2\nsequence: 4\nmicro_batch: 2\n";
  Workload operators = workload_from_text(moe + "unit: operator\n", "x.yaml");
  const Workload before = operators;
  apply_profile(profile, "p.json", operators);
  EXPECT_EQ(operators.operator_rates, profile.operator_rates);
  EXPECT_EQ(operators.layers.front().forward, before.layers.front().forward);
  EXPECT_EQ(with_micro_batch(operators, 4).operator_rates, profile.operator_rates);
  Workload blocks = workload_from_text(moe, "x.yaml");
  try {
    apply_profile(profile, "p.json", blocks);
    FAIL() << "blocks have no operators";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "p.json: has rates of operators alone, and the layers of workload x are not operators; write unit: "
                 "operator in that of a moe, or measure its layers");
  }
}

TEST(DeviceProfile, NamesTheLineAndKeyOfARateThatIsWrong)
{
  const auto with = [&](const std::string& was, const std::string& is) {
    std::string text = rates_alone;
    text.replace(text.find(was), was.size(), is);
    return ProfileFile(text).fault();
  };
  EXPECT_EQ(with("", ""), "no fault");
  EXPECT_EQ(with("\"flops_per_s\": 14e12", "\"flops_per_s\": 0"),
            "5: operator_rates.V100.flops_per_s: \"0\" is out of range; write a number, 1 or more");
  EXPECT_EQ(with("\"flops_per_s\": 14e12,", "").substr(0, 38), "4: operator_rates.V100.flops_per_s: mi");
  EXPECT_EQ(with("\"launch_s\": 5e-6", "\"launch_s\": 5e7"),
            "7: operator_rates.V100.launch_s: 5e+07 is out of range; the largest is 1e+06");
  EXPECT_EQ(with("\"fraction\": 0.5", "\"fraction\": 1.5"),
            "10: operator_rates.V100.efficiency[1].fraction: 1.5 is out of range; write a part of flops_per_s, above 0 "
            "and at most 1");
  EXPECT_EQ(with("\"work_flop\": 3e9", "\"work_flop\": 1e9"),
            "10: operator_rates.V100.efficiency[1].work_flop: 1e+09 is not above 1e+09, of the entry before; list them "
            "by work");
  EXPECT_EQ(with("\"fraction\": 0.5", "\"fraction\": 0.9"),
            "10: operator_rates.V100.efficiency[1].fraction: 0.9, with which 3e+09 FLOP take less time than the 1e+09 "
            "of the entry before; write at most 0.75");
  EXPECT_EQ(with("\"launch_s\"", "\"lunch_s\""), "7: operator_rates.V100.lunch_s: unknown key; did you mean launch_s?");
  EXPECT_EQ(with("\"P100\": {\"flops_per_s\": 9e12}", "\"P100\": 3"),
            "13: operator_rates.P100: is a single value; write \"key: value\" pairs");
  EXPECT_EQ(ProfileFile("{\"schema\": \"isobar-profile/1\",\n\"operator_rates\": {}}").fault(),
            "2: operator_rates: is empty; write the rates of a type of devices");
}

TEST(DeviceProfile, IsRefusedByLineAndKeyIfMalformed)
{
  DeviceProfile profile = small_profile();
  profile.machine = small_machine();
  const std::string good = profile_to_json(profile);
  const auto with = [&](const std::string& was, const std::string& is) {
    std::string text = good;
    text.replace(text.find(was), was.size(), is);
    return ProfileFile(text).fault();
  };
  EXPECT_EQ(with("isobar-profile/1", "isobar-plan/1"), "2: schema: \"isobar-plan/1\" is not isobar-profile/1");
  EXPECT_EQ(with("\"speed_flops\": 2000000000.0", "\"speed_flops\": 0"),
            "4: speed_flops: is 0; write the measured speed");
  EXPECT_EQ(with("\"forward_s\": 2.0", "\"forward_s\": -2.0").substr(0, 24), "20: layers[1].forward_s:");
  EXPECT_EQ(with("\"forward_s\": 2.0", "\"forward_s\": 1e300"),
            "20: layers[1].forward_s: 1e+300 is out of range; the largest is 1e+06");
  EXPECT_EQ(with("\"speed_flops\": 2000000000.0", "\"speed_flops\": 1e300"),
            "4: speed_flops: 1e+300 is out of range; the largest is 1e+30");
  EXPECT_EQ(with("\"device\"", "\"devise\"").substr(0, 10), "1: device:");
  EXPECT_EQ(with("\"busy_update_flops_per_s\": 3000000000.0", "\"busy_update_flops_per_s\": 0"),
            "39: machine.busy_update_flops_per_s: \"0\" is out of range; write a number, 1 or more");
  EXPECT_EQ(with("\"copy_out\"", "\"copy_back\"").substr(0, 22), "35: machine.copy_out: ");
  EXPECT_EQ(with("\"latency_s\": 2e-06", "\"latency_s\": 2e+06"),
            "45: machine.copy_out.latency_s: 2e+06 is out of range; the largest is 1e+06");
  EXPECT_EQ(with("\"read_bytes_per_s\": 3000000000.0", "\"read_bytes_per_s\": -1"),
            "50: machine.disk.read_bytes_per_s: \"-1\" is out of range; write a number, 1 or more");
}

}  // namespace
}  // namespace isobar::device_profile_test
