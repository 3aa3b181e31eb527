"""Operations on the samples of any data set: dividing them over clients, shifting, changing and normalising them."""
