#include "exec/data_options.hpp"

namespace isobar::exec {

void add_data_options(CLI::App& command, DataOptions& options)
{
  command.add_option("--data", options.train,
                     "what to train on: MNLI pairs (TSV) for bert, tokens (.bin, .npy) for gpt and llama; default: "
                     "synthetic data");
  command.add_option("--evaluate", options.evaluation, "what to evaluate on, of the same kind");
  command.add_option("--vocabulary", options.vocabulary,
                     "pieces of words of --data and --evaluate for bert (vocab.txt)");
}

}  // namespace isobar::exec
