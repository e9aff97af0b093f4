#pragma once

#include "core/text/document.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar {

/// What the sizes of a configuration are for.
enum class ConfigUse {
  Weights,  ///< Isobar's layers must compute exactly what the model does
  Costs     ///< they must cost the same
};

/// How a workload differs from the model of a configuration, and what the configuration leaves open.
struct ConfigRemarks {
  std::vector<std::string> differences;  ///< for the key `differences`: "activation_function gelu, not gelu_new"
  std::vector<std::string> defaults;     ///< what transformers' defaults give: "hidden_size 768"
  std::uint64_t left_out = 0;            ///< parameters of the model that the workload lacks
};

/// Reads a config.json of Hugging Face's transformers. A null means the default, like a missing key. Faults and remarks
/// go to lists that outlive the reader.
class ConfigReader {
 public:
  ConfigReader(const DocumentNode& node, ConfigUse use, ConfigRemarks& remarks, FaultList& faults)
      : ConfigReader(node, "", use, remarks, faults)
  {
  }

  ConfigUse use() const { return use_; }
  ConfigRemarks& remarks() { return *remarks_; }
  bool is_right_so_far() const { return faults_->empty(); }

  /// True for null too.
  bool has(const std::string& key) { return config_.optional(key) != nullptr; }
  bool has_value(const std::string& key);
  /// `key`, or where the configuration has that, `alias`, which transformers takes for it. Two different values are a
  /// fault.
  std::string named(const std::string& key, const std::string& alias);
  /// The number of members of an existing mapping.
  std::size_t member_count(const std::string& key);
  /// A reader of an existing mapping; messages prefix its keys with `key`.
  ConfigReader mapping(const std::string& key);
  /// The node of a member; null if it is missing.
  const DocumentNode* node(const std::string& key) { return config_.optional(key); }
  /// The texts of an existing list.
  std::vector<std::string> texts(const std::string& key);

  std::uint64_t count(const std::string& key, std::uint64_t highest) { return config_.required_count(key, 1, highest); }
  std::uint64_t count(const std::string& key, std::uint64_t highest, std::uint64_t default_value);
  /// A whole number, 0 or more.
  std::uint64_t whole(const std::string& key, std::uint64_t highest, std::uint64_t default_value);
  /// A count whose default is remarked.
  std::uint64_t size(const std::string& key, std::uint64_t highest, std::uint64_t default_value);
  double number(const std::string& key, double default_value);
  bool boolean(const std::string& key, bool default_value);
  /// A boolean whose default is remarked.
  bool choice(const std::string& key, bool default_value);
  std::string text(const std::string& key, const std::string& default_value);
  /// One of the names that Isobar supports. Another name is no misspelling of one: mixtral is not mistral.
  std::string supported_name(const std::string& key, const std::vector<std::string>& supported);

  /// A value of `key` in a message, which tells whether it is transformers' default.
  std::string stated(const std::string& key, std::uint64_t value);

  /// Refuse values that Isobar's layers do not compute: `exact` ones alone are right, and the default is the first. For
  /// costs, those of `alike` are right too, and any number or boolean: they are remarked as differences.
  void accept_text(const std::string& key, const std::vector<std::string>& exact,
                   const std::vector<std::string>& alike = {});
  void accept_number(const std::string& key, double exact);
  void accept_boolean(const std::string& key, bool exact);
  /// Refuse values that Isobar's layers do not have, whatever the use. `default_value` is transformers'.
  void demand_boolean(const std::string& key, bool supported);
  void demand_number(const std::string& key, double supported, double default_value);
  /// Refuse values that contradict each other, once each value read so far is right.
  void demand_parts(const std::string& key, std::uint64_t parts, const std::string& of, std::uint64_t whole);
  void demand_positions(const std::string& key, std::uint64_t positions, std::uint64_t sequence);
  /// Refuses any value except null, false, 0, [] or {}.
  void demand_nothing(const std::string& key, const std::string& meaning);

  /// Remarks what the model has of `key` where the layers have `exact`.
  void add_difference(const std::string& key, const std::string& value, const std::string& exact);
  void add_fault(const std::string& key, const std::string& what) { config_.add_fault(key, what); }

 private:
  ConfigReader(const DocumentNode& node, const std::string& path, ConfigUse use, ConfigRemarks& remarks,
               FaultList& faults)
      : config_(node, path, faults), use_(use), remarks_(&remarks), faults_(&faults)
  {
  }

  MappingReader config_;
  ConfigUse use_;
  ConfigRemarks* remarks_;
  FaultList* faults_;
};

}  // namespace isobar
