#pragma once

#include "exec/net/tcp_listener.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace isobar::exec {

/// Names and values.
using Environment = std::map<std::string, std::string>;
/// Without the ranks' secret, of which there is to be no copy.
Environment environment_of_this_process();

/// What the command line says of this process's place; each wins over the environment.
struct LaunchFlags {
  std::optional<std::size_t> rank;
  std::optional<std::size_t> world;
  std::optional<std::string> master;  ///< "host:port"
};

/// Which rank of how many this process is, and where it meets the others.
struct LaunchPlace {
  std::size_t rank = 0;
  std::size_t world_size = 1;
  std::size_t local_rank = 0;  ///< among the ranks of its machine
  Endpoint master;             ///< where rank 0 listens
  std::string node;            ///< what Slurm calls the machine; "" elsewhere
  std::string source;          ///< for people: who said so, such as "Slurm (SLURM_PROCID, SLURM_NTASKS)"
};

/// The place of a process that flags, torchrun, Open MPI, a PMI or Slurm's srun started, the first of these that is
/// there: torchrun may run under all others, Open MPI and a PMI's launcher under Slurm. A PMI that says the same as
/// Slurm is Slurm's own. None when nothing says a rank.
///
/// Rank 0 listens where --master says, else ISOBAR_MASTER, else at MASTER_ADDR:MASTER_PORT, or at the port after it
/// where torchrun's agent listens there itself (TORCHELASTIC_USE_AGENT_STORE). Without these: on the loopback interface
/// where Slurm or Open MPI say that all ranks are on one machine, on the first node of Slurm's step otherwise, at a
/// port in 20000 to 29999 that follows from the job.
/// @throws InputError naming the variables that are half set, malformed or contradict each other.
std::optional<LaunchPlace> launch_place(const Environment& environment, const LaunchFlags& flags);

/// The first host of a Slurm node list: "n0" of "n[0-3,7],m1", "r1n08" of "r[1-2]n[08-11]".
/// @throws InputError naming `variable` when it is none.
std::string first_host(const std::string& variable, const std::string& nodes);

}  // namespace isobar::exec
