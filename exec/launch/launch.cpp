#include "exec/launch/launch.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "exec/links/network_options.hpp"
#include "exec/net/secret.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

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
constexpr std::size_t longest_host = 255;  // POSIX: HOST_NAME_MAX
constexpr auto loopback = "127.0.0.1";

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

/// Where rank 0 listens.
struct Master {
  Endpoint endpoint;
  std::string advice;               ///< as LaunchPlace::master_advice
  std::string missing_advice = {};  ///< as LaunchPlace::missing_advice
};

constexpr auto other_address = "give all ranks another address with --master or ISOBAR_MASTER";

Master at_port_of_job(const std::string& host, const std::string& job)
{
  return {{host, port_of_job(job)}, fmt::format("the address follows from the job; {}", other_address)};
}

/// Address of rank 0 by torch's convention.
Master master_of_torch(const Variables& variables, std::size_t world_size)
{
  const std::string why = "MASTER_ADDR and MASTER_PORT go together";
  const std::string& host = variables.at("MASTER_ADDR", why);
  // The agent of torchrun may use the port itself, for a store for its ranks.
  const std::string* store = variables.find("TORCHELASTIC_USE_AGENT_STORE");
  const std::size_t offset = store && *store == "True" ? 1 : 0;
  constexpr std::size_t ports = std::numeric_limits<std::uint16_t>::max();
  const auto port = variables.number("MASTER_PORT", why, 1, ports + 1 - offset);
  const auto* const origin = offset == 1 ? "the port is MASTER_PORT + 1, since torchrun's agent listens at MASTER_PORT"
                                         : "it comes from MASTER_ADDR and MASTER_PORT";
  Master master = {{host, static_cast<std::uint16_t>(port + offset)}, fmt::format("{}; {}", origin, other_address)};
  const std::string* here = variables.find("LOCAL_WORLD_SIZE");
  if (is_loopback(host) && !(here && *here == std::to_string(world_size))) {
    master.missing_advice = fmt::format(
        "other machines cannot reach MASTER_ADDR, which is {}; for ranks there, give all ranks an address of rank 0's "
        "machine with --master or ISOBAR_MASTER",
        shown(host));
  }
  return master;
}

/// Node of rank 0 in a step of Slurm, as it follows from the variables that all ranks share.
std::string first_node_of_slurm(const Variables& variables, const std::string& why)
{
  if (const auto* distribution = variables.find("SLURM_DISTRIBUTION");
      distribution && distribution->starts_with("arbitrary")) {
    throw InputError("SLURM_DISTRIBUTION",
                     in_quotes(*distribution) + " does not say which node has rank 0; give --master HOST:PORT");
  }
  const char* list = variables.find("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const auto nodes = hosts_of(list, variables.at(list, why));
  // Slurm sorts a step's nodes by name, but numbers its ranks component by component. A step may leave out the first
  // components.
  const std::set<std::string> in_step(nodes.begin(), nodes.end());
  for (std::size_t component = 0;; ++component) {
    std::string name = fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", component);
    if (!variables.find(name)) name = fmt::format("SLURM_JOB_NODELIST_PACK_GROUP_{}", component);  // set by srun itself
    if (!variables.find(name)) return nodes.front();
    for (const auto& node : hosts_of(name, *variables.find(name))) {
      if (in_step.contains(node)) return node;
    }
  }
}

Master master_of_slurm(const Variables& variables, std::size_t rank)
{
  const std::string why = "Slurm's srun sets it; otherwise give --master HOST:PORT";
  const std::string job = "slurm " + variables.at("SLURM_JOB_ID", why) + "." + variables.at("SLURM_STEP_ID", why);
  const std::string* nodes = variables.find("SLURM_STEP_NUM_NODES");
  if (nodes && *nodes == "1") return at_port_of_job(loopback, job);
  Master master = at_port_of_job(first_node_of_slurm(variables, why), job);
  // The components of a heterogeneous step within one job leave no trace in the variables.
  const std::string* own = variables.find("SLURMD_NODENAME");
  if (rank == 0 && own && *own != master.endpoint.host) {
    throw InputError("SLURMD_NODENAME",
                     fmt::format("rank 0 is on {}, but the other ranks expect it on {}, the first node of the step; "
                                 "give all ranks --master {}",
                                 shown(*own), shown(master.endpoint.host), text_of({*own, master.endpoint.port})));
  }
  return master;
}

/// nullopt unless Open MPI reports that all ranks are on this machine.
std::optional<Master> master_of_open_mpi(const Variables& variables, std::size_t world_size)
{
  const std::string* here = variables.find("OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::string* job = variables.find("PMIX_NAMESPACE");
  if (!here || !job || *here != std::to_string(world_size)) return std::nullopt;
  return at_port_of_job(loopback, "mpi " + *job);
}

Master master_of(const Variables& variables, const LaunchFlags& flags, const Launcher* launcher,
                 const LaunchPlace& place)
{
  if (flags.master) return {endpoint_from_text("--master", *flags.master), "give all ranks another --master"};
  if (const auto* text = variables.find("ISOBAR_MASTER")) {
    return {endpoint_from_text("ISOBAR_MASTER", *text), "give all ranks another ISOBAR_MASTER"};
  }
  if (variables.find("MASTER_ADDR") || variables.find("MASTER_PORT"))
    return master_of_torch(variables, place.world_size);
  if (launcher == &slurm) return master_of_slurm(variables, place.rank);
  if (launcher == &open_mpi) {
    if (const auto master = master_of_open_mpi(variables, place.world_size)) return *master;
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

/// The numbers in brackets of a node list, such as 08, 09 and 11 of "08-09,11", with their leading zeros; nullopt for
/// any other text, and for more than `most` numbers.
std::optional<std::vector<std::string>> numbers_of(std::string_view text, std::size_t most)
{
  std::vector<std::string> numbers;
  for (;; text.remove_prefix(1)) {
    const auto range = text.substr(0, text.find(','));
    const auto dash = range.find('-');
    const auto low = range.substr(0, dash);
    const auto first = whole_number(low, std::string_view::npos);
    const auto last = dash == std::string_view::npos ? first : whole_number(range.substr(dash + 1), std::string::npos);
    if (!first || !last || *last < *first || *last - *first >= most - numbers.size()) return std::nullopt;
    for (auto number = *first; number <= *last; ++number) {
      numbers.push_back(fmt::format("{:0{}}", number, std::min(low.size(), longest_host)));
    }
    text.remove_prefix(range.size());
    if (text.empty()) return numbers;
  }
}

/// Takes the hosts of an entry of a node list, such as "r[1-2]n[08-11]", off the beginning of `rest`; nullopt for any
/// other text, and for more than `most` hosts.
std::optional<std::vector<std::string>> take_hosts(std::string_view& rest, std::size_t most)
{
  constexpr auto letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  std::vector<std::string> hosts = {""};
  while (!rest.empty() && rest.front() != ',') {
    std::vector<std::string> parts;
    if (rest.front() == '[') {
      const auto close = rest.find(']');
      auto numbers = close == std::string_view::npos ? std::nullopt : numbers_of(rest.substr(1, close - 1), most);
      if (!numbers) return std::nullopt;
      parts = std::move(*numbers);
      rest.remove_prefix(close + 1);
    } else {
      const auto length = std::min(rest.find_first_not_of(letters), rest.size());
      if (length == 0) return std::nullopt;
      parts = {std::string(rest.substr(0, length))};
      rest.remove_prefix(length);
    }
    if (hosts.size() > most / parts.size()) return std::nullopt;
    std::vector<std::string> longer;
    for (const auto& host : hosts) {
      for (const auto& part : parts) longer.push_back(host + part);
    }
    hosts = std::move(longer);
    if (hosts.front().size() > longest_host) return std::nullopt;
  }
  return hosts.front().empty() ? std::nullopt : std::optional(std::move(hosts));
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

std::vector<std::string> hosts_of(const std::string& variable, const std::string& nodes)
{
  const auto fault = [&] {
    return InputError(variable, in_quotes(nodes) + " is not a list of nodes, such as n[0-3,7],m1");
  };
  std::vector<std::string> hosts;
  for (std::string_view rest = nodes;; rest.remove_prefix(1)) {
    const auto entry = take_hosts(rest, most_ranks - hosts.size());
    if (!entry) throw fault();
    hosts.insert(hosts.end(), entry->begin(), entry->end());
    if (rest.empty()) return hosts;
  }
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
  auto master = master_of(variables, flags, launcher, place);
  place.master = std::move(master.endpoint);
  place.master_advice = std::move(master.advice);
  place.missing_advice = std::move(master.missing_advice);
  const std::string* node = launcher == &slurm ? variables.find("SLURMD_NODENAME") : nullptr;
  if (node) place.node = *node;
  place.source = source_of(variables, flags, launcher);
  return place;
}

}  // namespace isobar::exec
