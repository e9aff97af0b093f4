#pragma once

#include "exec/net/tcp_listener.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// Environment variables: values by name.
using Environment = std::map<std::string, std::string>;
/// Variables of this process except the ranks' secret, which must not be copied.
Environment environment_of_this_process();

/// Place of this process as the command line gives it; each flag wins over the environment.
struct LaunchFlags {
  std::optional<std::size_t> rank;
  std::optional<std::size_t> world;
  std::optional<std::string> master;  ///< "host:port"
};

/// The rank of this process, the number of ranks, and where they meet.
struct LaunchPlace {
  std::size_t rank = 0;
  std::size_t world_size = 1;
  std::size_t local_rank = 0;  ///< among the ranks of its machine
  Endpoint master;             ///< where rank 0 listens
  std::string master_advice;   ///< what to change when rank 0 cannot listen there
  std::string missing_advice;  ///< what to change when ranks on other machines are missing; "": nothing known
  std::string node;            ///< Slurm's name of the machine; "" elsewhere
  std::string source;          ///< where it comes from, for people, such as "Slurm (SLURM_PROCID, SLURM_NTASKS)"
};

/// Place of a process that was started with flags, by torchrun, Open MPI, a PMI or Slurm's srun. The first of these
/// that is present wins, since torchrun may run under all others, and Open MPI and a PMI's launcher under Slurm. A PMI
/// that agrees with Slurm is Slurm's own. nullopt when no source gives a rank.
///
/// Rank 0 listens at --master, else at ISOBAR_MASTER, else at MASTER_ADDR:MASTER_PORT, or at the next port where
/// torchrun's agent listens there itself (TORCHELASTIC_USE_AGENT_STORE). Without these, it listens on the loopback
/// interface if Slurm or Open MPI report that all ranks are on one machine, else on the first node of Slurm's step. In
/// a heterogeneous job, that is the first node of the first component with nodes in the step. The port then follows
/// from the job: 20000 to 29999.
/// @throws InputError naming the variables that are incomplete, malformed or contradictory, or that leave the node of
/// rank 0 open (an arbitrary distribution of Slurm).
std::optional<LaunchPlace> launch_place(const Environment& environment, const LaunchFlags& flags);

/// Hosts of a Slurm node list, in its order: n0, n1, n7 and m1 of "n[0-1,7],m1", r1n08 and r1n09 of "r1n[08-09]".
/// @throws InputError naming `variable` for any other text, and for more than a million hosts.
std::vector<std::string> hosts_of(const std::string& variable, const std::string& nodes);

}  // namespace isobar::exec
