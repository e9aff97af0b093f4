#include "exec/files/checkpoint.hpp"

#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "exec/files/checkpoint_manifest.hpp"
#include "exec/files/crc32c.hpp"
#include "exec/files/durable_files.hpp"
#include "exec/files/name_parts.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

namespace isobar::exec {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::error_code& fault)
{
  throw EnvironmentError(fmt::format("{}: {}", shown_path(path), fault.message()));
}

/// Sorted names in a folder; none when the folder does not exist.
std::vector<std::string> names_in(const fs::path& folder)
{
  std::vector<std::string> names;
  std::error_code fault;
  for (fs::directory_iterator entry(folder, fault), end; !fault && entry != end; entry.increment(fault)) {
    names.push_back(entry->path().filename().string());
  }
  if (fault == std::errc::not_a_directory) throw InputError(shown_path(folder), "is a file; name a folder");
  if (fault && fault != std::errc::no_such_file_or_directory) fail(folder, fault);
  std::sort(names.begin(), names.end());
  return names;
}

void remove_file(const fs::path& path)
{
  std::error_code fault;
  fs::remove(path, fault);
  if (fault && fault != std::errc::no_such_file_or_directory) fail(path, fault);
}

/// Takes "STAGE-of-STAGES" after `begin`; none for other text, and for a number beyond its limit.
std::optional<std::pair<std::size_t, std::size_t>> take_place(std::string_view begin, std::string_view& text)
{
  if (!take(begin, text)) return std::nullopt;
  const auto number = take_number(text);
  if (!number || !take("-of-", text)) return std::nullopt;
  const auto count = take_number(text);
  if (!count || *number >= *count || *count > most_stages) return std::nullopt;
  return std::pair(*number, *count);
}

/// The part that a file's name begins with, whatever its ending; none for other names.
std::optional<PartName> part_in_name(std::string_view name)
{
  const auto stage = take_place("stage-", name);
  if (!stage) return std::nullopt;
  PartName part{.stage = stage->first, .stages = stage->second};
  if (const auto shard = take_place("-shard-", name)) std::tie(part.shard, part.shards) = *shard;
  return part;
}

/// The part whose manifest has this name; none for other names.
std::optional<PartName> part_of_manifest(std::string_view name)
{
  const auto found = part_in_name(name);
  return found && name == manifest_file_name(*found) ? found : std::nullopt;
}

/// Whether a run wrote the file; temporary files add a dot and six letters (core/base/files.cpp).
bool is_ours(std::string_view name)
{
  const auto found = part_in_name(name);
  if (!found) return false;
  for (const auto& whole : {tensor_file_name(*found), manifest_file_name(*found)}) {
    const bool is_temporary = name.size() == whole.size() + 7 && name.starts_with(whole) && name[whole.size()] == '.';
    if (name == whole || is_temporary) return true;
  }
  return false;
}

/// Removes our files, and the folder if nothing else is in it.
void remove_checkpoint(const fs::path& folder)
{
  std::error_code fault;
  if (!fs::is_directory(fs::symlink_status(folder, fault))) return;
  for (const auto& name : names_in(folder)) {
    if (is_ours(name)) remove_file(folder / name);
  }
  fs::remove(folder, fault);
  if (fault && fault != std::errc::directory_not_empty) fail(folder, fault);
}

/// The parts of a checkpoint, by the names in its folder, in order. @throws InputError when some are missing.
std::vector<PartName> parts_in(const fs::path& folder)
{
  std::set<PartName> found;
  for (const auto& name : names_in(folder)) {
    if (const auto part = part_of_manifest(name)) found.insert(*part);
  }
  const std::string where = shown_path(folder);
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) throw InputError(where, "no such checkpoint");
  if (found.empty()) throw InputError(where, "has no part of a manifest");
  const std::size_t stages = found.begin()->stages;
  std::vector<std::size_t> shards(stages, 1);  // by stage
  for (const auto& part : found) {
    if (part.stages != stages) {
      throw InputError(where, fmt::format("has manifest parts of {} and of {} stages", std::min(stages, part.stages),
                                          std::max(stages, part.stages)));
    }
    shards[part.stage] = part.shards;
  }
  std::vector<PartName> parts;
  std::optional<PartName> missing;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    for (std::size_t shard = 0; shard < shards[stage]; ++shard) {
      parts.push_back({stage, stages, shard, shards[stage]});
      if (!missing && !found.contains(parts.back())) missing = parts.back();
    }
  }
  for (const auto& part : found) {
    if (part.shards == shards[part.stage]) continue;
    throw InputError(where, fmt::format("has manifest parts of {} and of {} shards of stage {}",
                                        std::min(part.shards, shards[part.stage]),
                                        std::max(part.shards, shards[part.stage]), part.stage));
  }
  if (!missing) return parts;
  throw InputError(where, fmt::format("has {} of {} manifest parts; {} is missing", found.size(), parts.size(),
                                      manifest_file_name(*missing)));
}

/// Whether every part is there, so that no rank is writing any more.
bool has_all_parts(const fs::path& folder)
{
  try {
    parts_in(folder);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// The run by the first readable manifest part; none when no part is readable.
std::optional<std::string> run_in(const fs::path& folder)
{
  for (const auto& name : names_in(folder)) {
    if (!part_of_manifest(name)) continue;
    try {
      return read_manifest(folder / name).run;
    } catch (const InputError&) {
      // Another part may name it.
    }
  }
  return std::nullopt;
}

/// Refuses what cannot be read, which is not damage, and pipes, on which a read would block.
void require_readable(const fs::path& path)
{
  if (access(path.c_str(), R_OK) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) fail(path, {errno, std::generic_category()});
    return;
  }
  if (!fs::is_regular_file(path)) throw InputError(shown_path(path), "is not a regular file");
}

std::uint32_t crc_of_file(const fs::path& path)
{
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(std::size_t{1} << 22);
  std::uint32_t crc = 0;
  while (file) {
    throw_if_interrupted();
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    crc = crc32c(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(file.gcount()))), crc);
  }
  if (!file.eof()) throw EnvironmentError(shown_path(path) + ": cannot be read");
  return crc;
}

[[noreturn]] void refuse_crc(const std::string& where, std::uint32_t found, std::uint32_t written)
{
  throw InputError(where, fmt::format("damaged: its CRC-32C is {:08x}, but {:08x} was written", found, written));
}

/// Checks that a part is from the same run as the first one, and has the layers after those of the stages before.
void check_part(const ManifestPart& part, const ManifestPart& first, const ManifestPart* before,
                const std::string& where)
{
  if (part.run != first.run) throw InputError(where, "run: differs from stage 0's; the parts are from different runs");
  if (before != nullptr && before->name.stage == part.name.stage) {
    if (part.first_layer == before->first_layer && part.last_layer == before->last_layer) return;
    throw InputError(
        where, fmt::format("first_layer: has layers {} to {}; {} has {} to {} of the same stage", part.first_layer,
                           part.last_layer, manifest_file_name(before->name), before->first_layer, before->last_layer));
  }
  const std::size_t layer = before != nullptr ? before->last_layer + 1 : 0;
  if (part.first_layer != layer) {
    throw InputError(
        where, fmt::format("first_layer: is {}; the previous stages end before layer {}", part.first_layer, layer));
  }
}

}  // namespace

std::string checkpoint_name(std::size_t layer, std::string_view parameter)
{
  return fmt::format("layers.{}.{}", layer, parameter);
}

Checkpoint::Checkpoint(fs::path folder, std::uint64_t step) : folder_(std::move(folder)), step_(step)
{
  std::vector<ManifestPart> manifest;
  for (const auto& name : parts_in(folder_)) {
    const auto manifest_path = folder_ / manifest_file_name(name);
    const auto where = shown_path(manifest_path);
    const auto path = folder_ / tensor_file_name(name);
    for (const auto& file : {manifest_path, path}) require_readable(file);
    auto part = read_manifest(manifest_path);
    if (part.step != step || part.name != name) {
      throw InputError(where, fmt::format("is of step {}, {}; its name says step {}, {}", part.step,
                                          manifest_file_name(part.name), step, manifest_file_name(name)));
    }
    check_part(part, manifest.empty() ? part : manifest.front(), manifest.empty() ? nullptr : &manifest.back(), where);
    SafetensorsFile file(path);
    if (file.size() != part.size) {
      throw InputError(file.where(), fmt::format("has {} bytes, but {} were written", file.size(), part.size));
    }
    const auto names = file.names();
    const bool same = std::equal(names.begin(), names.end(), part.tensor_crc.begin(), part.tensor_crc.end(),
                                 [](const auto& tensor, const auto& listed) { return tensor == listed.first; });
    if (!same) throw InputError(where, "tensors: differ from those in " + tensor_file_name(name));
    for (const auto& tensor : names) {
      if (!part_of_.emplace(tensor, parts_.size()).second) {
        throw InputError(file.where(), fmt::format("tensor {} is also in an earlier part", in_quotes(tensor)));
      }
    }
    files_.insert({manifest_file_name(name), tensor_file_name(name)});
    stages_ = name.stages;
    parts_.push_back({std::move(file), path, part.crc, part.last_layer, part.tensor_crc});
    manifest.push_back(std::move(part));
  }
  run_ = manifest.front().run;
  find_divided_tensors();
}

/// Finds the tensors of which the files hold slices, and slices of which they hold slices again.
void Checkpoint::find_divided_tensors()
{
  std::vector<std::string> names;
  for (const auto& [name, part] : part_of_) names.push_back(name);
  while (!names.empty()) {
    std::set<std::string> divided;
    for (const auto& name : names) {
      if (const auto slice = tensor_part_in_name(name)) {
        add_slice(name, *slice);
        divided.insert(slice->tensor);
      }
    }
    names.assign(divided.begin(), divided.end());
  }
  for (const auto& [name, tensor] : divided_) require_all_slices(tensor);
}

void Checkpoint::add_slice(const std::string& name, const NamedPart& slice)
{
  const TensorFacts& own = facts(name);
  const auto stored = part_of_.find(name);
  const std::string file = stored == part_of_.end() ? where() : parts_[stored->second].file.where();
  DividedTensor& divided = divided_.try_emplace(slice.tensor).first->second;
  if (divided.slices.empty()) divided.facts = {slice.tensor, own.type, slice.part.shape};
  if (own.type != divided.facts.type || own.shape != std::vector{slice.part.elements()}) {
    throw InputError(file, fmt::format("tensor {} has type {} and shape {}; a slice of {} has type {} and shape [{}]",
                                       in_quotes(name), name_of(own.type), shape_in_words(own.shape),
                                       in_quotes(slice.tensor), name_of(divided.facts.type), slice.part.elements()));
  }
  const bool is_first = divided.slices.empty();
  if (slice.part.shape != divided.facts.shape || part_of_.contains(slice.tensor) ||
      (!is_first && slice.part.period != divided.slices.begin()->second.part.period)) {
    throw InputError(file, fmt::format("tensor {} is in the checkpoint in another shape", in_quotes(slice.tensor)));
  }
  divided.slices.emplace(slice.part.begin, Slice{name, slice.part});
}

/// Slices follow each other without a gap or an overlap.
void Checkpoint::require_all_slices(const DividedTensor& tensor) const
{
  std::uint64_t next = 0;
  for (const auto& [begin, slice] : tensor.slices) {
    if (begin != next) break;
    next = slice.part.end;
  }
  const std::uint64_t period = tensor.slices.begin()->second.part.period;
  if (next == period) return;
  throw InputError(
      where(),
      fmt::format("tensor {} has {} elements{}, and its slices end at element {}", in_quotes(tensor.facts.name), period,
                  period == tensor.facts.bytes() / size_of(tensor.facts.type) ? "" : " in each row or block", next));
}

std::string Checkpoint::where() const
{
  return shown_path(folder_);
}

std::vector<std::string> Checkpoint::names() const
{
  std::vector<std::string> names;
  for (const auto& [name, part] : part_of_) {
    if (!tensor_part_in_name(name)) names.push_back(name);
  }
  for (const auto& [name, tensor] : divided_) {
    if (!tensor_part_in_name(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

const TensorFacts* Checkpoint::find(const std::string& name) const
{
  if (const auto divided = divided_.find(name); divided != divided_.end()) return &divided->second.facts;
  const auto found = part_of_.find(name);
  return found == part_of_.end() ? nullptr : parts_[found->second].file.find(name);
}

void Checkpoint::read(const std::string& name, std::span<std::byte> into) const
{
  const TensorFacts& wanted = facts(name);
  const auto divided = divided_.find(name);
  if (divided == divided_.end()) return read_stored(name, into);
  const std::uint64_t element = size_of(wanted.type);
  for (const auto& [begin, slice] : divided->second.slices) {
    const std::uint64_t size = (slice.part.end - begin) * element;
    if (slice.part.period * element == into.size()) {
      read(slice.name, into.subspan(begin * element, size));
      continue;
    }
    std::vector<std::byte> values(into.size() / slice.part.period * (slice.part.end - begin));
    read(slice.name, values);
    for (std::uint64_t i = 0; i * size < values.size(); ++i) {
      const auto from = values.begin() + static_cast<std::ptrdiff_t>(i * size);
      std::copy_n(from, size, into.begin() + static_cast<std::ptrdiff_t>((i * slice.part.period + begin) * element));
    }
  }
}

/// Reads a tensor or a slice under its name in a file.
void Checkpoint::read_stored(const std::string& name, std::span<std::byte> into) const
{
  const auto& part = parts_[part_of_.at(name)];
  part.file.read(name, into);
  const std::uint32_t found = crc32c(into);
  const std::uint32_t written = part.tensor_crc.at(name);
  if (found != written) refuse_crc(fmt::format("{}: tensor {}", part.file.where(), in_quotes(name)), found, written);
}

std::size_t Checkpoint::layers() const
{
  return parts_.back().last_layer + 1;
}

void Checkpoint::verify() const
{
  for (const auto& part : parts_) {
    const std::uint32_t found = crc_of_file(part.path);
    if (found != part.crc) refuse_crc(part.file.where(), found, part.crc);
  }
}

fs::path CheckpointStore::folder_of(std::uint64_t step) const
{
  return folder_ / fmt::format("step-{:08}", step);
}

void CheckpointStore::require_writable() const
{
  names_in(folder_);  // refuses a file
  std::error_code fault;
  const bool is_new = fs::create_directories(folder_, fault);
  if (fault) fail(folder_, fault);
  if (is_new) synchronise_folder(folder_of_file(folder_));
  const TemporaryFile probe(folder_ / "probe");
}

void CheckpointStore::write(const StageSnapshot& snapshot) const
{
  const auto folder = folder_of(snapshot.step);
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault) fail(folder, fault);
  synchronise_folder(folder_);
  const PartName& own = snapshot.part;
  const auto manifest = manifest_file_name(own);
  for (const auto& name : names_in(folder)) {
    const auto part = part_of_manifest(name);
    if (!part) continue;
    const bool is_of_other_shards = part->stage == own.stage && part->shards != own.shards;
    if (name == manifest || part->stages != own.stages || is_of_other_shards) remove_file(folder / name);
  }
  std::vector<TensorView> tensors;
  for (const auto& tensor : snapshot.tensors) tensors.push_back({tensor.facts, tensor.data});
  const auto written = write_safetensors(folder / tensor_file_name(own), tensors, {});
  write_file_atomically(folder / manifest, manifest_to_text({.step = snapshot.step,
                                                             .name = own,
                                                             .first_layer = snapshot.first_layer,
                                                             .last_layer = snapshot.last_layer,
                                                             .run = snapshot.run,
                                                             .size = written.size,
                                                             .crc = written.crc,
                                                             .tensor_crc = written.tensor_crc}));
  synchronise_folder(folder);
}

std::vector<std::uint64_t> CheckpointStore::steps() const
{
  std::vector<std::uint64_t> steps;
  for (const auto& name : names_in(folder_)) {
    constexpr std::string_view begin = "step-";
    if (!name.starts_with(begin)) continue;
    std::string_view rest = std::string_view(name).substr(begin.size());
    const auto step = take_number(rest);
    if (step && folder_of(*step).filename() == name) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

CheckpointStore::Newest CheckpointStore::newest_complete(Check check) const
{
  Newest newest;
  auto found = steps();
  std::reverse(found.begin(), found.end());
  for (const std::uint64_t step : found) {
    try {
      const Checkpoint checkpoint = open(step);
      if (check == Check::Elements) checkpoint.verify();
      newest.step = step;
      break;
    } catch (const InputError& reason) {
      newest.skipped.emplace_back(reason.what());
      newest.damaged = newest.damaged || has_all_parts(folder_of(step));
    }
  }
  return newest;
}

Checkpoint CheckpointStore::open(std::uint64_t step) const
{
  return {folder_of(step), step};
}

void CheckpointStore::keep_last(std::size_t count) const
{
  ensure(count >= 1, "at least one checkpoint is kept");
  std::size_t kept = 0;
  std::optional<std::string> run;  // the one that wrote the newest
  auto found = steps();
  std::reverse(found.begin(), found.end());
  for (const std::uint64_t step : found) {
    const auto folder = folder_of(step);
    std::set<std::string> files;
    if (run && run_in(folder).value_or(*run) != *run) continue;
    try {
      if (kept < count) {
        const Checkpoint checkpoint = open(step);
        files = checkpoint.files();
        run = checkpoint.run();
      }
    } catch (const InputError&) {
      if (kept == 0) continue;
    }
    if (files.empty()) {
      remove_checkpoint(folder);
      continue;
    }
    ++kept;
    for (const auto& name : names_in(folder)) {
      if (is_ours(name) && !files.contains(name)) remove_file(folder / name);
    }
  }
}

void CheckpointStore::clear_later_than(std::uint64_t step) const
{
  for (const std::uint64_t found : steps()) {
    if (found <= step) continue;
    const auto folder = folder_of(found);
    if (!has_all_parts(folder)) {
      remove_checkpoint(folder);
      continue;
    }
    fs::path aside;
    std::error_code fault;
    for (int number = 1; number == 1 || fs::exists(aside, fault); ++number) {
      aside = folder;
      aside += number == 1 ? ".damaged" : fmt::format(".damaged-{}", number);
    }
    fs::rename(folder, aside, fault);
    if (fault) fail(folder, fault);
  }
}

void AsyncCheckpointWriter::write(StageSnapshot snapshot)
{
  finish();
  pending_ = std::async(std::launch::async, [store = store_, keep = keep_, snapshot = std::move(snapshot)] {
    store.write(snapshot);
    if (keep) store.keep_last(*keep);
  });
}

void AsyncCheckpointWriter::throw_if_failed()
{
  if (pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) pending_.get();
}

void AsyncCheckpointWriter::finish()
{
  if (pending_.valid()) pending_.get();
}

}  // namespace isobar::exec
