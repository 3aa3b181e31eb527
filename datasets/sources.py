"""Sources of the published data sets: page, licence, files with checksums (`bench datasets --croissant`).

Checksums and addresses of what torchvision fetches are torchvision's. Licences are what the publishers' pages and
repositories say, looked up in November 2026; where they say none, or none could be looked up, `licence` is empty.
"""

import functools
import re
from dataclasses import dataclass
from typing import Any

from bench import croissant
from bench.citations import DATA_SET, papers, software
from bench.plugin import DATASETS
from datasets import organamnist, photographs, watch

File = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A data set's source.

    Attributes:
        title: what it is called.
        page: the page that describes it.
        licence: its address or SPDX identifier; empty where none is known.
        place: pattern, under the data root, of files that the user must put there.
        note: what else is to be known before it is used.
    """

    title: str
    page: str
    licence: str = ""
    place: str = ""
    note: str = ""


DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
_SIGNS = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/"
_SIGN_FILES = {
    "GTSRB-Training_fixed.zip": "513f3c79a4c5141765e10e952eaa2478",
    "GTSRB_Final_Test_Images.zip": "c7e4e6327067d32654124b0fe9e82185",
    "GTSRB_Final_Test_GT.zip": "fe31e9c9270bbcd7b84b7f21a9d9d9e5",
}
"""As `torchvision.datasets.GTSRB.download` has them inside."""
_CC_BY = "https://creativecommons.org/licenses/by/4.0/"
_LEAF, _UCI, _WILDS = (
    "https://leaf.cmu.edu/",
    "https://archive.ics.uci.edu/dataset/",
    "https://wilds.stanford.edu/datasets/",
)
_DRAWN = "It is no file: pFLeague draws its samples, the same wherever it runs."

SOURCES = {
    "ag_news": Source("AG News", "https://arxiv.org/abs/1509.01626", place="ag_news_csv/*.csv"),
    "camelyon17": Source(
        "Camelyon17-WILDS", _WILDS, "https://creativecommons.org/publicdomain/zero/1.0/", "camelyon17_v1.0/**"
    ),
    "celeba": Source("CelebA, as LEAF prepares it", _LEAF, place="celeba/data/**"),
    "cifar10": Source("CIFAR-10", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "cifar100": Source("CIFAR-100", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "digits": Source(
        "Optical Recognition of Handwritten Digits, the test part, as scikit-learn ships it",
        f"{_UCI}80/optical+recognition+of+handwritten+digits", _CC_BY, note="The package scikit-learn brings the file.",
    ),
    "emnist": Source("EMNIST", "https://www.nist.gov/itl/products-and-services/emnist-dataset"),
    "emnist_writers": Source(
        "EMNIST ByClass with its writers", "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        place="EMNIST/matlab/emnist-byclass.mat",
    ),
    "fashion_mnist": Source("Fashion-MNIST", "https://github.com/zalandoresearch/fashion-mnist", "MIT"),
    "femnist": Source("FEMNIST, as LEAF prepares it", _LEAF, place="femnist/data/**/*.json"),
    "flowers102": Source("102 Category Flower Dataset", "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"),
    "gtsrb": Source("German Traffic Sign Recognition Benchmark", "https://benchmark.ini.rub.de/"),
    "har": Source(
        "Human Activity Recognition Using Smartphones",
        f"{_UCI}240/human+activity+recognition+using+smartphones", _CC_BY, "UCI HAR Dataset/**/*.txt",
        "The licence is that of UCI's page; the README inside the archive prohibits commercial use.",
    ),
    "inaturalist2017": Source("iNaturalist 2017", "https://github.com/visipedia/inat_comp/tree/master/2017"),
    "iwildcam": Source("iWildCam2020-WILDS", _WILDS, "CDLA-Permissive-1.0", "iwildcam_v2.0/**"),
    "kmnist": Source(
        "Kuzushiji-MNIST", "https://github.com/rois-codh/kmnist", "https://creativecommons.org/licenses/by-sa/4.0/"
    ),
    "markov": Source("Markov speakers", "", "Apache-2.0", note=_DRAWN),
    "mnist": Source(
        "MNIST", "http://yann.lecun.com/exdb/mnist/", "https://creativecommons.org/licenses/by-sa/3.0/",
        note="The licence is that of Keras' documentation; MNIST's page says none.",
    ),
    "motion": Source("Motion of phones", "", "Apache-2.0", note=_DRAWN),
    "organamnist": Source("OrganAMNIST (MedMNIST v2)", "https://medmnist.com", _CC_BY),
    "pamap2": Source(
        "PAMAP2 Physical Activity Monitoring", f"{_UCI}231/pamap2+physical+activity+monitoring", _CC_BY,
        "PAMAP2_Dataset/Protocol/*.dat",
    ),
    "sent140": Source("Sentiment140, as LEAF prepares it", _LEAF, place="sent140/data/**/*.json"),
    "shakespeare": Source("Shakespeare, as LEAF prepares it", _LEAF, place="shakespeare/data/**/*.json"),
    "stl10": Source("STL-10", "https://cs.stanford.edu/~acoates/stl10/"),
    "svhn": Source("Street View House Numbers, cropped", "http://ufldl.stanford.edu/housenumbers/"),
    "synthetic": Source("Synthetic(alpha, beta)", "https://arxiv.org/abs/1812.06127", "Apache-2.0", note=_DRAWN),
    "tinyimagenet": Source("Tiny ImageNet", "http://cs231n.stanford.edu/"),
    "usps": Source("USPS", "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html"),
    "watch": Source(
        "Shoulder exercises by smartwatch, as seglearn ships them", "https://github.com/dmbee/seglearn", "BSD-3-Clause",
        note="The package seglearn brings the file.",
    ),
}  # fmt: skip


def describe(name: str) -> str:
    """Croissant metadata of a published or drawn data set, as JSON.

    Raises:
        KeyError: it reads the user's own data.
    """
    source, files = SOURCES[name], _files(name)
    loader = (DATASETS.declaration(name).__doc__ or "").partition("\n")[0]
    sentences = [loader, source.note]
    if source.place:
        sentences.append(f"pFLeague fetches nothing: the user puts `{source.place}` under the data root.")
        files = [croissant.file_set(source.place, "Files of the user, of which no checksum is known.")]
    elif files and not source.note.startswith("The package"):
        sentences.append("`bench run --download` fetches the files, and compares their checksums.")
    if not source.licence:
        sentences.append("No licence is recorded here: the terms of use are its publisher's.")
    drawn = source.note == _DRAWN and not papers().get(DATA_SET + name)
    bibtex = software() if drawn else "\n".join(papers()[DATA_SET + name])
    year = re.search(r"^  year = \{(\d{4})", bibtex, re.MULTILINE)
    return croissant.metadata(
        source.title, " ".join(filter(None, sentences)), url=source.page, licence=source.licence, bibtex=bibtex,
        published=year[1] if year else "", distribution=files,
    )  # fmt: skip


def _files(name: str) -> list[File]:
    """Files that `--download` or a package brings of a data set, if there are such."""
    from torchvision import datasets
    from torchvision.datasets import inaturalist

    as_file = croissant.file_object
    match name:
        case "cifar10" | "cifar100" | "stl10":
            factory = getattr(datasets, name.upper())
            return [as_file(factory.filename, factory.url, md5=factory.tgz_md5)]
        case "mnist" | "kmnist" | "fashion_mnist":
            factory = datasets.FashionMNIST if name == "fashion_mnist" else getattr(datasets, name.upper())
            return [as_file(file, factory.mirrors[0] + file, md5=md5) for file, md5 in factory.resources]
        case "svhn" | "usps":
            listed = [getattr(datasets, name.upper()).split_list[part] for part in ("train", "test")]
            return [as_file(file, url, md5=md5) for url, file, md5 in listed]
        case "emnist":
            return [as_file("gzip.zip", datasets.EMNIST.url, md5=datasets.EMNIST.md5)]
        case "flowers102":
            prefix, pairs = datasets.Flowers102._download_url_prefix, datasets.Flowers102._file_dict.values()
            return [as_file(file, prefix + file, md5=md5) for file, md5 in pairs]
        case "gtsrb":
            return [as_file(file, _SIGNS + file, md5=md5) for file, md5 in _SIGN_FILES.items()]
        case "inaturalist2017":
            url, md5 = inaturalist.DATASET_URLS["2017"], inaturalist.DATASET_MD5["2017"]
            return [as_file(url.rsplit("/", 1)[1], url, md5=md5, size="186 GB")]
        case "tinyimagenet":
            url = photographs.TINY_URL
            return [as_file(url.rsplit("/", 1)[1], url, md5=photographs.TINY_MD5, size="248 MB")]
        case "organamnist":
            return [as_file("organamnist.npz", organamnist.URL, md5=organamnist.MD5)]
        case "digits":
            path, package = "sklearn/datasets/data/digits.csv.gz", "In the package scikit-learn."
            return [as_file("digits.csv.gz", path, sha256=DIGITS_SHA256, size=57_523, description=package)]
        case "watch":
            path, package = f"{watch.PACKAGE}/{watch.PACKED.as_posix()}", "In the package seglearn 1.2.5."
            return [as_file(watch.PACKED.name, path, sha256=watch.PACKED_SHA256, size=18_118_091, description=package)]
    return []


for _name in SOURCES:
    DATASETS.offer(_name, "metadata")(functools.partial(describe, _name))
