#pragma once

#include "core/compute/calibration.hpp"
#include "core/compute/device_profile.hpp"
#include "core/compute/measurements.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "sim/platform/platform.hpp"

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace isobar::cli {

/// Arguments PLATFORM and WORKLOAD and options --set, --system, --devices and --profile, which most commands share.
struct InputOptions {
  std::string platform;
  std::string workload;
  WorkloadSettings settings;                   ///< with those of `system`
  std::optional<compute::Calibration> system;  ///< of --system
  std::string devices;
  std::vector<std::string> profiles;

  void add_to(CLI::App& command);
};

/// Adds option --without, which lists devices and sites.
void add_without(CLI::App& command, std::vector<std::string>& without);

/// A platform and a workload, read and checked.
struct Inputs {
  sim::Platform platform;
  Workload workload;
  Fingerprint platform_fingerprint;
  Fingerprint workload_fingerprint;
  std::optional<Fingerprint> profile_fingerprint;    ///< where times were measured
  std::optional<std::string> devices_file;           ///< where one was named
  std::vector<std::string> notes_of_constants = {};  ///< as compute::notes_of_constants has them
  bool has_measured_layers = false;                  ///< in the profile: for micro-batches of the workload file alone
  std::vector<std::string> without = {};             ///< the devices that LeftOut names
  std::optional<std::string> system_file = {};       ///< of --system

  /// Every file that was read.
  std::vector<std::string> files() const;
};
/// Profiles as one: their names, and the hash of all.
Fingerprint fingerprint_of(const std::vector<std::string>& profiles);
/// The files of a fingerprint that stands for several profiles.
std::vector<std::string> files_of(const Fingerprint& profiles);
/// Stands for the profile when layer times are work divided by nominal speed.
inline const Fingerprint unmeasured{"no profile", "none"};

/// Which layers recompute their activations.
struct RecomputedLayers {
  std::string layers = "none";         ///< as --recompute takes them
  std::string source = "--recompute";  ///< what asks for it, for messages
};

/// Devices that no plan of these inputs may use: they need no routes, types or constants.
struct LeftOut {
  std::vector<std::string> devices;  ///< or sites, for all of their devices
  std::string source = "--without";  ///< what names them, for messages
};

/// Reads the inputs of a command; the micro-batch is that of the workload file. The platform still has the devices that
/// are left out, which Inputs::without lists.
/// @throws InputError with every fault of the first file that has one, or naming what asks for recomputation or leaves
/// out an unknown device or site.
Inputs load(const InputOptions& options, const RecomputedLayers& recomputed = {}, const LeftOut& left_out = {});
/// Reads the inputs of a plan: with the plan's settings, micro-batch and recomputation, without the devices that it
/// leaves out.
/// @throws InputError likewise, or naming the plan's file.
Inputs load(const InputOptions& options, const Plan& plan, const std::string& plan_file);
/// The same with a platform that was loaded already, with all its devices.
Inputs load(const InputOptions& options, const sim::Platform& platform, const Plan& plan, const std::string& plan_file);

/// Gives the layers of a workload with compute: operators their work, and the platform's devices but those left out
/// their speeds; does nothing for other workloads.
void price(Inputs& inputs, const compute::Measurements& measurements = {}, const LeftOut& left_out = {});
/// Gives the platform the speeds of a profile that the workload has (apply_profile), and the inputs its name.
void take_speeds(const DeviceProfile& profile, const std::string& file, Inputs& inputs);

/// Prints to stderr where predictions with these inputs are only near: devices without a rate for the workload's dtype,
/// whose float32 rate is used; a matrix that counts twice; constants that no training run was fitted for.
void note_approximations(const Inputs& inputs);

}  // namespace isobar::cli
