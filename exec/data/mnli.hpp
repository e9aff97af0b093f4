#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::exec {

/// Number of MNLI classes, numbered as in Hugging Face's data set GLUE: 0 entailment, 1 neutral, 2 contradiction.
/// (Google's run_classifier.py numbers them alphabetically.)
inline constexpr std::uint64_t mnli_classes = 3;

/// Two sentences and their label: how the hypothesis follows from the premise.
struct SentencePair {
  std::string_view premise;     ///< column sentence1
  std::string_view hypothesis;  ///< column sentence2
  std::int64_t label = 0;       ///< column gold_label
};

/// A file of GLUE's MNLI: one pair per line, in tab-separated columns that the first line names. Quotes have no
/// meaning. Pairs without a majority label (gold_label "-") are left out. Memory: the file's size. Source: Wang et al.
/// 2018 (arXiv 1804.07461), section 3; Williams et al. 2018 (arXiv 1704.05426), section 2.
class MnliFile {
 public:
  /// @throws InputError "file:line: …" for missing columns, unknown labels, bytes that are not UTF-8, and a file
  /// without any labelled pair.
  explicit MnliFile(const std::filesystem::path& file);

  std::uint64_t size() const { return pairs_.size(); }
  /// Number of pairs that were left out because they have no label.
  std::uint64_t unlabelled() const { return unlabelled_; }
  SentencePair pair(std::uint64_t index) const;

 private:
  /// Position of a column in `text_`; a view would not survive a move of the object.
  struct Place {
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
  };
  struct Pair {
    Place premise, hypothesis;
    std::int64_t label = 0;
  };

  Place place_of(std::string_view column) const;

  std::string text_;
  std::vector<Pair> pairs_;
  std::uint64_t unlabelled_ = 0;
};

}  // namespace isobar::exec
