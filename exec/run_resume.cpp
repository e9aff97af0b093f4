#include "exec/run_resume.hpp"

#include "core/base/standard_streams.hpp"
#include "core/errors.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/data/dataset.hpp"
#include "exec/data/tokenizer_settings.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace isobar::exec {

std::string run_identity(const RunCommandOptions& options, const Plan& plan, const std::string& workload_hash,
                         const std::optional<Weights>& weights)
{
  nlohmann::ordered_json identity = {
      {"workload", workload_hash}, {"microbatches", whole_microbatches(plan)}, {"seed", options.run.seed}};
  if (plan.micro_batch) identity["micro_batch"] = *plan.micro_batch;
  if (!options.data.train.empty()) identity["data"] = data_fingerprint(options.data.train);
  const bool has_type = !options.data.type.empty() && options.data.type != "uint16";  // which is the default
  if (!options.data.train.empty() && has_type) identity["data_type"] = options.data.type;
  if (!options.data.vocabulary.empty()) {
    identity["vocabulary"] = data_fingerprint(options.data.vocabulary);
    const auto settings = text_of(tokenizer_settings_beside(options.data.vocabulary));
    if (!settings.empty()) identity["tokenizer"] = settings;
  }
  if (weights) identity["weights"] = weights->fingerprint();
  return identity.dump();
}

std::unique_ptr<FolderLock> lock_checkpoints(const RunCommandOptions& options,
                                             const std::optional<LaunchPlace>& launched)
{
  const std::string& folder = options.run.checkpoints.folder;
  if (folder.empty()) return nullptr;
  CheckpointStore(folder).require_writable();
  const std::size_t rank = launched ? launched->rank : options.rank.value_or(0);
  if (rank != 0) return nullptr;
  return std::make_unique<FolderLock>(folder, options.run.warn);
}

std::optional<Checkpoint> checkpoint_to_resume(RunCommandOptions& options, std::size_t layers)
{
  const std::string& folder = options.run.checkpoints.folder;
  if (folder.empty()) return std::nullopt;
  const CheckpointStore store(folder);
  const auto newest =
      store.newest_complete(options.resume ? CheckpointStore::Check::Elements : CheckpointStore::Check::Files);
  if (!options.resume) {
    if (newest.step || !newest.skipped.empty()) {
      throw InputError(folder, fmt::format("already holds {}; add --resume to continue from it, or name another folder",
                                           newest.step ? fmt::format("a checkpoint of step {}", *newest.step)
                                                       : "parts of checkpoints"));
    }
    return std::nullopt;
  }
  for (const auto& skipped : newest.skipped) say(fmt::format("skipped: {}", skipped));
  // A run that is killed leaves at most two checkpoints that its ranks were writing.
  constexpr std::size_t most_unfinished = 2;
  if (!newest.step && (newest.damaged || newest.skipped.size() > most_unfinished)) {
    throw InputError(folder, "has no complete checkpoint; restore the missing files, or name another folder");
  }
  if (!newest.step) {
    say(fmt::format("{}: no complete checkpoint; starting at step 0", folder));
    return std::nullopt;
  }
  Checkpoint checkpoint = store.open(*newest.step);
  if (checkpoint.run() != options.run.checkpoints.run) {
    throw InputError(checkpoint.where(), fmt::format("was written by another run: {}; this one is {}",
                                                     shown(checkpoint.run(), 300), options.run.checkpoints.run));
  }
  if (checkpoint.layers() != layers) {
    throw InputError(checkpoint.where(),
                     fmt::format("has {}; the workload has {}", counted(checkpoint.layers(), "layer"), layers));
  }
  say(fmt::format("continuing from {}", checkpoint.where()));
  options.run.first_step = checkpoint.step();
  return checkpoint;
}

}  // namespace isobar::exec
