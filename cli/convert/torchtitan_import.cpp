#include "cli/commands/order_file.hpp"
#include "cli/convert/imported_pipeline.hpp"
#include "cli/frameworks/model_items.hpp"
#include "cli/frameworks/shell_text.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "core/text/separated.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace isobar::cli {

namespace {

constexpr auto pipeline_degree = "parallelism.pipeline-parallel-degree";
constexpr auto schedule_key = "parallelism.pipeline-parallel-schedule";
constexpr auto schedule_csv_key = "parallelism.pipeline-parallel-schedule-csv";
constexpr auto modules_key = "parallelism.module-fqns-per-model-part";

class TorchtitanFile {
 public:
  TorchtitanFile(const std::string& file, const Workload& workload) : file_(file), workload_(workload) { read(); }

  ImportedPipeline pipeline()
  {
    ImportedPipeline made;
    const std::size_t devices = count(pipeline_degree, 1);
    const std::string schedule = text(schedule_key, "1F1B");
    const bool is_single = schedule == "1F1B" || schedule == "GPipe";
    made.is_v = schedule == "ZBVZeroBubble" || schedule == "DualPipeV";
    const auto letters = devices == 1 ? whole_model() : letters_of_parts(devices, is_single);
    made.stages = stages_with_letters(letters, workload_, place(modules_key));
    if (made.stages.size() % devices != 0) {
      refuse(modules_key, fmt::format("{} for {} of a pipeline", counted(made.stages.size(), "part"), devices));
    }
    made.chunks = made.stages.size() / devices;
    if (made.is_v && made.chunks != 2) refuse(schedule_key, fmt::format("{} has 2 parts on each device", schedule));
    made.replicas = count("parallelism.data-parallel-replicate-degree", 1);
    const std::size_t sharded = count("parallelism.data-parallel-shard-degree", 1);
    if (made.replicas > 1 && sharded > 1) {
      refuse("parallelism.data-parallel-shard-degree",
             "replicas of groups that divide parameters; a plan has one of both");
    }
    if (sharded > 1) {
      made.sharded = text("parallelism.fsdp-reshard-after-forward", "default") == "never" ? Sharding::Gradients
                                                                                          : Sharding::Parameters;
      made.replicas = sharded;
    }
    made.shards = count("parallelism.tensor-parallel-degree", 1);
    made.divides_sequences_among_shards =
        made.shards > 1 && !values_.contains("parallelism.no-enable-sequence-parallel");
    made.context = {count("parallelism.context-parallel-degree", 1), ContextExchange::AllGather};
    if (made.context.degree == 1) made.context = {};
    add_experts(made);
    add_batches(devices, made);
    add_schedule(schedule, devices, made);
    return made;
  }

 private:
  void read()
  {
    const auto words = shell_words(read_file(file_), file_);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (!words[i].starts_with("--")) continue;
      const auto equals = words[i].find('=');
      std::string key = words[i].substr(2, equals == std::string::npos ? equals : equals - 2);
      std::ranges::replace(key, '_', '-');
      auto& values = values_[key];
      values.clear();
      if (equals != std::string::npos) {
        values.push_back(words[i].substr(equals + 1));
        continue;
      }
      // A part of a model is a list between commas; other arguments have one value.
      const bool takes_all = key == modules_key;
      while (i + 1 < words.size() && !words[i + 1].starts_with("--") && words[i + 1] != ")" &&
             words[i + 1].find(':') == std::string::npos && (takes_all || values.empty())) {
        values.push_back(words[++i]);
      }
    }
    if (!values_.contains(pipeline_degree) && !values_.contains("training.local-batch-size")) {
      throw InputError(file_,
                       "has no arguments of torchtitan; write some, such as --parallelism.pipeline-parallel-degree 4");
    }
  }

  std::string place(const std::string& key) const { return fmt::format("{}: --{}", on_one_line(file_), key); }
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const
  {
    throw InputError(place(key), what);
  }

  std::string text(const std::string& key, const std::string& otherwise) const
  {
    const auto found = values_.find(key);
    if (found == values_.end()) return otherwise;
    if (found->second.empty()) refuse(key, "has no value; write one");
    return found->second.front();
  }

  std::size_t count(const std::string& key, std::size_t otherwise) const
  {
    const auto found = values_.find(key);
    if (found == values_.end()) return otherwise;
    const std::string word = text(key, "");
    const auto number = count_from_text(word);
    if (!number || *number == 0) refuse(key, fmt::format("{} is no number of 1 or more", in_quotes(word)));
    return *number;
  }

  std::vector<std::string> whole_model() const
  {
    std::string letters;
    for (const auto& item : items_of(workload_)) letters += item.letter;
    return {letters};
  }

  std::vector<std::string> letters_of_parts(std::size_t devices, bool is_single) const
  {
    const auto found = values_.find(modules_key);
    if (found == values_.end()) return generated_parts(devices, is_single);
    std::vector<std::string> parts;
    std::size_t next = 0;
    for (const auto& part : found->second) {
      std::string letters;
      for (const auto name : texts_between(part, ',')) {
        if (name == "norm") continue;  // is part of the head
        if (name == "tok_embeddings") {
          letters += 'E';
        } else if (name == "lm_head" || name == "output") {
          letters += 'L';
        } else if (name == fmt::format("layers.{}", next)) {
          letters += 't';
          ++next;
        } else {
          refuse(modules_key,
                 fmt::format("{} where tok_embeddings, layers.{}, norm or lm_head follows", in_quotes(name), next));
        }
      }
      parts.push_back(letters);
    }
    return parts;
  }

  /// As torchtitan's _generate_llm_fqn_per_model_part: equally many layers a part, one more the first ones, where
  /// embedding and head count as layers.
  std::vector<std::string> generated_parts(std::size_t devices, bool is_single) const
  {
    const auto layers = static_cast<std::size_t>(std::ranges::count(items_of(workload_), 't', &ModelItem::letter));
    const std::size_t first_less = count("parallelism.pipeline-parallel-first-stage-less-layers", 1);
    const std::size_t last_less = count("parallelism.pipeline-parallel-last-stage-less-layers", 1);
    const std::size_t all = layers + first_less + last_less;
    const std::size_t each = count("parallelism.pipeline-parallel-layers-per-stage", 0);
    const std::size_t parts = each > 0 ? (all + each - 1) / each : devices * (is_single ? 1 : 2);
    const std::size_t least = all / parts;
    if (least < std::max<std::size_t>({first_less, last_less, 1})) {
      refuse(pipeline_degree, fmt::format("{} for {} and {} that embedding and head count as", counted(parts, "part"),
                                          counted(layers, "layer"), first_less + last_less));
    }
    std::vector<std::string> letters;
    for (std::size_t part = 0; part < parts; ++part) {
      std::size_t own = least + (part < all % parts ? 1 : 0);
      if (part == 0) own -= first_less;
      if (part + 1 == parts && part > 0) own -= last_less;
      letters.push_back((part == 0 ? "E" : "") + std::string(own, 't') + (part + 1 == parts ? "L" : ""));
    }
    return letters;
  }

  void add_experts(ImportedPipeline& made) const
  {
    const std::size_t parts = count("parallelism.expert-parallel-degree", 1);
    if (parts == 1) return;
    if (parts % made.shards != 0) {
      refuse("parallelism.expert-parallel-degree",
             fmt::format("{} is no multiple of {}", parts, counted(made.shards, "shard")));
    }
    made.experts = {parts / made.shards, made.shards > 1};
  }

  void add_batches(std::size_t devices, ImportedPipeline& made) const
  {
    const std::size_t local = count("training.local-batch-size", 8);
    const std::size_t micro = devices > 1 ? count("parallelism.pipeline-parallel-microbatch-size", 1) : local;
    if (micro != workload_.micro_batch) {
      refuse(devices > 1 ? "parallelism.pipeline-parallel-microbatch-size" : "training.local-batch-size",
             fmt::format("micro-batches of {}; {} has {}: add --set micro_batch={}", micro, shown(workload_.name),
                         workload_.micro_batch, micro));
    }
    const std::size_t global = count("training.global-batch-size", local * made.replicas);
    if (local % micro != 0 || global % (local * made.replicas) != 0) {
      refuse("training.global-batch-size", fmt::format("{} samples; a step is a multiple of {} of {} each", global,
                                                       counted(made.replicas, "local batch", "es"), local));
    }
    if (devices > 1 && global != local * made.replicas) {
      refuse("training.global-batch-size", "accumulates gradients of several pipeline steps; a plan has one");
    }
    made.microbatches = global / micro;
  }

  void add_schedule(const std::string& schedule, std::size_t devices, ImportedPipeline& made) const
  {
    if (const std::string csv = text(schedule_csv_key, ""); !csv.empty()) {
      const auto beside = std::filesystem::path(file_).parent_path() / csv;
      const std::string order = std::filesystem::exists(beside) ? beside.string() : csv;
      schedules::PipelineShape shape{{}, {}, made.microbatches / made.replicas};
      for (std::size_t rank = 0; rank < devices; ++rank) shape.devices.push_back(fmt::format("{}", rank));
      for (std::size_t stage = 0; stage < made.stages.size(); ++stage) {
        shape.rank_of_stage.push_back(made.is_v ? schedules::rank_of_stage(schedules::Folding::V, stage, devices)
                                                : stage % devices);
      }
      const auto by_device = read_order_file(order, shape, made.experts.divides());
      std::vector<Order> orders;
      for (const auto& device : shape.devices) orders.push_back(by_device.at(device));
      set_orders(std::move(orders), shape, made);
      return;
    }
    if (devices == 1 || schedule == "1F1B") return;
    const std::uint64_t of_replica = made.microbatches / made.replicas;
    if (schedule == "GPipe") {
      made.schedule.name = "gpipe";
    } else if (schedule == "Interleaved1F1B") {
      const std::uint64_t rounds = std::max<std::uint64_t>(1, of_replica / devices);
      made.schedule = {"interleaved", {{"chunks", {made.chunks}}, {"group", {of_replica / rounds}}}};
    } else if (made.is_v) {
      made.schedule.name = schedule == "DualPipeV" ? "dualpipe-v" : "zero-bubble-v";
    } else {
      refuse(schedule_key,
             fmt::format("{} is none of 1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble, DualPipeV; write its "
                         "order to a file and name it with --{}",
                         in_quotes(schedule), schedule_csv_key));
    }
  }

  const std::string& file_;
  const Workload& workload_;
  std::map<std::string, std::vector<std::string>> values_;
};

}  // namespace

ImportedPipeline pipeline_of_torchtitan(const std::string& file, const Workload& workload)
{
  return TorchtitanFile(file, workload).pipeline();
}

}  // namespace isobar::cli
