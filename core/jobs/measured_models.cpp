#include "core/jobs/measured_models.hpp"

#include "core/errors.hpp"

#include <algorithm>

namespace isobar {

namespace {

struct Measured {
  const char* model;
  std::size_t devices;
  double step_ms;  ///< 0: not measured
  double busy_ms[3];
  double start_s;
};

// Steps: the rows of trace3.csv and cluster_trace.csv, which agree but for resnet18 on 32 GPUs, whose parts are about a
// seventh in one of them. Start costs: Muri's simulator (Rivendile/Muri at 4e69a78c, Apache-2.0).
// clang-format off
constexpr Measured table[] = {
    {"a2c", 1, 517, {514, 14, 0}, 38},
    {"a2c", 2, 525, {504, 14, 0.5}, 39},
    {"a2c", 4, 533, {502, 10, 0.3}, 39},
    {"a2c", 8, 555, {502, 14, 0.4}, 46},
    {"a2c", 16, 567, {514, 14, 1.2}, 46},
    {"a2c", 32, 585, {507, 14, 2}, 46},
    {"bert", 1, 178, {0.5, 160, 0}, 10},
    {"bert", 2, 195, {0.5, 163, 18}, 10},
    {"bert", 4, 190, {0.5, 163, 18}, 10},
    {"bert", 8, 192, {0.5, 167, 59}, 10},
    {"bert", 16, 0, {0, 0, 0}, 10},
    {"bert", 32, 260, {0.5, 166, 133}, 10},
    {"dqn", 1, 490, {446, 8, 0}, 5},
    {"dqn", 2, 495, {441, 8, 0.6}, 5},
    {"dqn", 4, 505, {440, 8, 0.4}, 6},
    {"dqn", 8, 509, {435, 8, 0.5}, 6},
    {"dqn", 16, 525, {438, 8, 1.2}, 8},
    {"dqn", 32, 546, {437, 8, 1.6}, 8},
    {"gpt2", 1, 426, {0.6, 410, 0}, 10},
    {"gpt2", 2, 464, {0.7, 416, 40}, 10},
    {"gpt2", 4, 433, {0.6, 413, 20}, 10},
    {"gpt2", 8, 437, {0.6, 419, 49}, 10},
    {"gpt2", 16, 491, {0.6, 415, 137}, 10},
    {"gpt2", 32, 514, {0.7, 414, 216}, 10},
    {"resnet18", 1, 779, {711, 110, 0}, 4},
    {"resnet18", 2, 881, {687, 110, 95}, 5},
    {"resnet18", 4, 921, {723, 113, 73}, 5},
    {"resnet18", 8, 1010, {784, 117, 77}, 7},
    {"resnet18", 16, 0, {0, 0, 0}, 7},
    {"resnet18", 32, 1059, {712, 111, 93}, 7},
    {"shufflenet_v2_x1_0", 1, 798, {706, 59, 0}, 4},
    {"shufflenet_v2_x1_0", 2, 850, {747, 58, 18}, 4},
    {"shufflenet_v2_x1_0", 4, 886, {703, 62, 17}, 5},
    {"shufflenet_v2_x1_0", 8, 957, {769, 57, 10}, 5},
    {"shufflenet_v2_x1_0", 16, 0, {0, 0, 0}, 7},
    {"shufflenet_v2_x1_0", 32, 1019, {799, 56, 24}, 8},
    {"vgg16", 1, 107, {117, 68, 0}, 7},
    {"vgg16", 2, 191, {114, 72, 40}, 7},
    {"vgg16", 4, 201, {82, 72, 67}, 8},
    {"vgg16", 8, 214, {82, 75, 66}, 9},
    {"vgg16", 16, 0, {0, 0, 0}, 9},
    {"vgg16", 32, 336, {87, 67, 131}, 10},
    {"vgg19", 1, 109, {114, 80, 0}, 7},
    {"vgg19", 2, 205, {115, 83, 41}, 7},
    {"vgg19", 4, 212, {84, 85, 73}, 8},
    {"vgg19", 8, 226, {82, 88, 60}, 9},
    {"vgg19", 16, 302, {102, 78, 123}, 10},
    {"vgg19", 32, 356, {89, 79, 141}, 10},
};
// clang-format on

/// The row of the next larger number of devices, else the model's last one, of those that `has` accepts.
template <typename Has>
const Measured* find(const std::string& model, std::size_t devices, Has has)
{
  const Measured* found = nullptr;
  for (const auto& row : table) {
    if (row.model != model || !has(row)) continue;
    found = &row;
    if (row.devices >= devices) break;
  }
  return found;
}

}  // namespace

const std::vector<std::string>& measured_models()
{
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found;
    for (const auto& row : table) {
      if (found.empty() || found.back() != row.model) found.emplace_back(row.model);
    }
    return found;
  }();
  return names;
}

JobStepTimes measured_step(const std::string& model, std::size_t devices)
{
  const Measured* row = find(model, devices, [](const Measured& measured) { return measured.step_ms > 0; });
  ensure(row != nullptr, "a model without measured steps");
  JobStepTimes step;
  step.alone = Seconds(row->step_ms / 1000);
  std::transform(std::begin(row->busy_ms), std::end(row->busy_ms), step.busy.begin(),
                 [](double milliseconds) { return Seconds(milliseconds / 1000); });
  return step;
}

std::optional<Seconds> measured_start_cost(const std::string& model, std::size_t devices)
{
  const Measured* row = find(model, devices, [](const Measured&) { return true; });
  return row == nullptr ? std::nullopt : std::optional(Seconds(row->start_s));
}

}  // namespace isobar
