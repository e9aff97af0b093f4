#include "exec/launch/launch.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "exec/net/secret.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>
#include <system_error>

namespace isobar::exec {

namespace {

/// A program that starts ranks, and the variables that it sets for them.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* sign;  ///< variable without which the others do not concern us; "": none
};

// The first one that is present wins.
constexpr std::array launchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", ""},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""},
    Launcher{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ""},
    // A batch script has the others too, but only steps of srun are ranks.
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
};
constexpr const Launcher& torchrun = launchers[0];
constexpr const Launcher& open_mpi = launchers[1];
constexpr const Launcher& pmi = launchers[2];
constexpr const Launcher& slurm = launchers[3];

constexpr std::size_t most_ranks = 1'000'000;

/// Parses a whole number below `limit`; nullopt for any other text.
std::optional<std::size_t> whole_number(std::string_view text, std::size_t limit)
{
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number >= limit) return std::nullopt;
  return number;
}

/// Reads variables and reports their errors.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(&environment) {}

  /// nullptr when the variable is not set, or empty, as in shells.
  const std::string* find(const std::string& name) const
  {
    const auto found = environment_->find(name);
    return found == environment_->end() || found->second.empty() ? nullptr : &found->second;
  }

  const std::string& at(const std::string& name, const std::string& why) const
  {
    const std::string* value = find(name);
    if (!value) throw InputError(name, "not set; " + why);
    return *value;
  }

  std::size_t number(const std::string& name, const std::string& why, std::size_t lowest = 0,
                     std::size_t limit = most_ranks + 1) const
  {
    const std::string& text = at(name, why);
    const auto number = whole_number(text, limit);
    if (!number || *number < lowest) {
      throw InputError(name, fmt::format("{} is not a whole number from {} to {}", in_quotes(text), lowest, limit - 1));
    }
    return *number;
  }

  bool has(const Launcher& launcher) const
  {
    return (*launcher.sign == '\0' || find(launcher.sign)) && (find(launcher.rank) || find(launcher.size));
  }

 private:
  const Environment* environment_;
};

/// The same port for all ranks of a job, and mostly another one for another job; below the ephemeral ports.
std::uint16_t port_of_job(const std::string& job)
{
  constexpr int hexadecimal = 16;
  const auto hash = std::stoull(fingerprint(job), nullptr, hexadecimal);
  return static_cast<std::uint16_t>(20'000 + hash % 10'000);
}

Endpoint on_this_machine(const std::string& job)
{
  return {"127.0.0.1", port_of_job(job)};
}

/// Address of rank 0 by torch's convention.
Endpoint master_of_torch(const Variables& variables)
{
  const std::string why = "MASTER_ADDR and MASTER_PORT go together";
  const std::string& host = variables.at("MASTER_ADDR", why);
  // The agent of torchrun may use the port itself, for a store for its ranks.
  const std::string* store = variables.find("TORCHELASTIC_USE_AGENT_STORE");
  const std::size_t offset = store && *store == "True" ? 1 : 0;
  constexpr std::size_t ports = std::numeric_limits<std::uint16_t>::max();
  const auto port = variables.number("MASTER_PORT", why, 1, ports + 1 - offset);
  return {host, static_cast<std::uint16_t>(port + offset)};
}

Endpoint master_of_slurm(const Variables& variables)
{
  const std::string why = "Slurm's srun sets it; otherwise give --master HOST:PORT";
  const std::string job = "slurm " + variables.at("SLURM_JOB_ID", why) + "." + variables.at("SLURM_STEP_ID", why);
  const std::string* nodes = variables.find("SLURM_STEP_NUM_NODES");
  if (nodes && *nodes == "1") return on_this_machine(job);
  const char* list = variables.find("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  return {first_host(list, variables.at(list, why)), port_of_job(job)};
}

/// nullopt unless Open MPI reports that all ranks are on this machine.
std::optional<Endpoint> master_of_open_mpi(const Variables& variables, std::size_t world_size)
{
  const std::string* here = variables.find("OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::string* job = variables.find("PMIX_NAMESPACE");
  if (!here || !job || *here != std::to_string(world_size)) return std::nullopt;
  return on_this_machine("mpi " + *job);
}

Endpoint master_of(const Variables& variables, const LaunchFlags& flags, const Launcher* launcher,
                   std::size_t world_size)
{
  if (flags.master) return endpoint_from_text("--master", *flags.master);
  if (const auto* text = variables.find("ISOBAR_MASTER")) return endpoint_from_text("ISOBAR_MASTER", *text);
  if (variables.find("MASTER_ADDR") || variables.find("MASTER_PORT")) return master_of_torch(variables);
  if (launcher == &slurm) return master_of_slurm(variables);
  if (launcher == &open_mpi) {
    if (const auto master = master_of_open_mpi(variables, world_size)) return *master;
  }
  throw InputError(
      "the address of rank 0 is not set; give --master HOST:PORT to all ranks, or set ISOBAR_MASTER, or MASTER_ADDR "
      "and MASTER_PORT");
}

const Launcher* launcher_of(const Variables& variables)
{
  const auto* const found = std::find_if(launchers.begin(), launchers.end(),
                                         [&](const Launcher& launcher) { return variables.has(launcher); });
  if (found == launchers.end()) return nullptr;
  const auto same = [&](const char* a, const char* b) {
    const auto* left = variables.find(a);
    const auto* right = variables.find(b);
    return left && right && *left == *right;
  };
  const bool is_slurms_own =
      found == &pmi && variables.has(slurm) && same(pmi.rank, slurm.rank) && same(pmi.size, slurm.size);
  return is_slurms_own ? &slurm : found;
}

/// "--master, torchrun (RANK, WORLD_SIZE), overriding Slurm".
std::string source_of(const Variables& variables, const LaunchFlags& flags, const Launcher* launcher)
{
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (flags.rank) add("--rank");
  if (flags.world) add("--world");
  if (flags.master) add("--master");
  const bool used = launcher && !(flags.rank && flags.world);
  if (used) add(fmt::format("{} ({}, {})", launcher->name, launcher->rank, launcher->size));
  if (!flags.master && variables.find("ISOBAR_MASTER")) {
    add("ISOBAR_MASTER");
  } else if (!flags.master && variables.find("MASTER_ADDR") && !(used && launcher == &torchrun)) {
    add("MASTER_ADDR");
  }
  std::string others;
  for (const auto& other : launchers) {
    if ((used && &other == launcher) || !variables.has(other)) continue;
    others += (others.empty() ? "" : " and ") + std::string(other.name);
  }
  return others.empty() ? text : text + ", overriding " + others;
}

}  // namespace

Environment environment_of_this_process()
{
  Environment environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || text.substr(0, equals) == Secret::variable) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string first_host(const std::string& variable, const std::string& nodes)
{
  const auto fault = [&] {
    return InputError(variable, in_quotes(nodes) + " is not a list of nodes, such as n[0-3,7],m1");
  };
  std::string host;
  for (std::size_t i = 0; i < nodes.size() && nodes[i] != ',';) {
    if (nodes[i] != '[') {
      host += nodes[i++];
      continue;
    }
    const auto first = i + 1;
    const auto end = std::min(nodes.find_first_of(",-]", first), nodes.size());
    const auto close = nodes.find(']', first);
    if (close == std::string::npos || !whole_number(nodes.substr(first, end - first), std::string::npos)) throw fault();
    host += nodes.substr(first, end - first);
    i = close + 1;
  }
  constexpr auto letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  if (host.empty() || host.find_first_not_of(letters) != std::string::npos) throw fault();
  return host;
}

std::optional<LaunchPlace> launch_place(const Environment& environment, const LaunchFlags& flags)
{
  const Variables variables(environment);
  const Launcher* launcher = launcher_of(variables);
  if (!launcher && !flags.rank && !flags.world && !flags.master) return std::nullopt;
  if (!launcher && !(flags.rank && flags.world)) {
    throw InputError("--rank requires --ranks, or --world and --master where no launcher sets them");
  }
  LaunchPlace place;
  const auto number_of = [&](const std::optional<std::size_t>& flag, const char* name, std::size_t lowest) {
    if (flag) return *flag;
    return variables.number(
        name, fmt::format("{} sets {} and {} together", launcher->name, launcher->rank, launcher->size), lowest);
  };
  place.rank = number_of(flags.rank, launcher ? launcher->rank : "", 0);
  place.world_size = number_of(flags.world, launcher ? launcher->size : "", 1);
  if (place.rank >= place.world_size) {
    throw InputError(flags.rank ? "--rank" : launcher->rank,
                     fmt::format("{} is not below {}, which is {}", place.rank,
                                 flags.world ? "--world" : launcher->size, place.world_size));
  }
  if (launcher && !flags.rank && variables.find(launcher->local_rank)) {
    place.local_rank = variables.number(launcher->local_rank, "", 0, place.world_size);
  }
  place.master = master_of(variables, flags, launcher, place.world_size);
  const std::string* node = launcher == &slurm ? variables.find("SLURMD_NODENAME") : nullptr;
  if (node) place.node = *node;
  place.source = source_of(variables, flags, launcher);
  return place;
}

}  // namespace isobar::exec
