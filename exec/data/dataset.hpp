#pragma once

#include "core/model/workload.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// A label that the loss ignores.
inline constexpr std::int64_t ignored_label = -100;

/// A batch of samples. Matrices are row-major, with one sample per row.
struct Batch {
  std::uint64_t samples = 0;
  std::uint64_t sequence = 0;
  std::vector<std::int64_t> tokens;    ///< [samples, sequence]
  std::vector<std::int64_t> mask;      ///< bert: [samples, sequence], 1 for a token, 0 for padding; others: empty
  std::vector<std::int64_t> segments;  ///< bert: [samples, sequence], 0 for the first sentence, 1 for the second
  std::vector<std::int64_t> labels;    ///< bert: [samples]; gpt, llama: [samples, sequence], the next token
};

/// Training or evaluation data as a pure function from position to samples. May be used by several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Number of samples in an epoch, at least 1. Sample k of a run belongs to epoch k / samples().
  virtual std::uint64_t samples() const = 0;
  /// Number of samples in an evaluation: all samples of the file, each once.
  virtual std::uint64_t evaluation_samples() const { return samples(); }

  /// Samples first … first + count − 1 of a run with this seed. Each epoch has every sample once, in its own order, so
  /// that a run resumes from its position only. For gpt and llama, an epoch begins at a random one of the first
  /// `sequence` tokens, and its windows follow one another without a gap.
  /// @throws InputError, EnvironmentError when the file can no longer be read.
  virtual Batch batch(std::uint64_t seed, std::uint64_t first, std::uint64_t count) const = 0;

  /// Samples first … first + count − 1 in file order. Labels are `ignored_label` past the end of the file and in the
  /// unfilled part of the last window.
  virtual Batch evaluation_batch(std::uint64_t first, std::uint64_t count) const = 0;
};

/// The data files that the user names; "" means none.
struct DataOptions {
  std::string train;
  std::string evaluation;
  std::string vocabulary;  ///< bert: the word pieces, vocab.txt
  std::string type = {};   ///< gpt, llama: name of the numbers in files without a header
};

/// The opened data sets; null where no file is named.
struct Datasets {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> evaluation;
};

/// Opens the files of `options` for the workload's model: MNLI pairs and a vocabulary for bert, a token file for gpt
/// and llama. The evaluation file is read to its end.
/// @throws InputError for a model that takes no data (resnet, listed layers), for a file that does not fit the
/// workload's vocabulary, classes or sequence, for an unknown type, and for every fault of a file.
Datasets open_datasets(const DataOptions& options, const Workload& workload);

/// Hash that recognises a data file, in constant memory: `fingerprint` of its content up to 256 MiB; for a larger file,
/// of its size and 4,096 evenly spaced pieces of 64 KiB. @throws InputError when it is not a regular file.
std::string data_fingerprint(const std::filesystem::path& file);

}  // namespace isobar::exec
