#include "exec/run/machine_needs.hpp"

#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/files/open_file.hpp"
#include "exec/files/scratch_file.hpp"
#include "exec/launch/device_name.hpp"
#include "exec/launch/plan_ranks.hpp"

#include <fmt/format.h>

#include <system_error>

namespace isobar::exec {

namespace {

Bytes free_space(const std::filesystem::path& folder)
{
  std::error_code fault;
  const auto space = std::filesystem::space(folder, fault);
  if (fault) throw EnvironmentError(shown_path(folder), "cannot write there: " + fault.message());
  return Bytes(static_cast<double>(space.available));
}

}  // namespace

Bytes peak_memory_here(const Plan& plan, const std::optional<std::size_t>& rank)
{
  Bytes peak;
  const auto devices = devices_of_ranks(plan);
  for (std::size_t each = 0; each < devices.size() && plan.predicted; ++each) {
    const auto found = plan.predicted->peak_memory.find(devices[each]);
    if (rank.value_or(each) == each && found != plan.predicted->peak_memory.end()) peak += found->second;
  }
  return peak;
}

MachineNeed memory_need(const std::string& who_needs, Bytes needed, Bytes available, const std::string& available_text)
{
  return {"memory", fmt::format("{}; {} {} here", available_text, who_needs, text_of(needed)), needed, available};
}

std::vector<MachineNeed> machine_needs(const Program& program, const std::optional<std::size_t>& rank, bool on_gpu,
                                       const std::filesystem::path& scratch)
{
  Bytes on_device;
  Bytes on_host;
  Bytes on_disk;
  for (std::size_t each = 0; each < program.ranks(); ++each) {
    if (rank.value_or(each) != each) continue;
    on_device += program.resident(each, Tier::Device);
    on_host += program.resident(each, Tier::Host);
    on_disk += program.resident(each, Tier::Disk);
  }
  std::vector<MachineNeed> needs;
  if (on_host > Bytes(0)) {
    const Bytes needed = on_gpu ? on_host : on_host + on_device;
    const Bytes has = machine_memory().total;
    needs.push_back({"machine memory",
                     fmt::format("the plan's ranks hold {} in the memory of this machine, which has {}",
                                 text_of(needed), text_of(has)),
                     needed, has});
  }
  if (on_disk > Bytes(0)) {
    const std::filesystem::path folder = scratch_folder(scratch);
    const Bytes has = free_space(folder);
    needs.push_back({"disk",
                     fmt::format("the plan's ranks hold {} on the disk of {}, which has {} left", text_of(on_disk),
                                 shown_path(folder), text_of(has)),
                     on_disk, has});
  }
  return needs;
}

}  // namespace isobar::exec
